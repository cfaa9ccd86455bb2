"""One-shot critique fine-tuning: many solutions of one problem, a critique of each by a teacher, and
imitation of the critiques.

    one_shot_cft        rollout strategy: solutions of the prompt, and the critiques of them that are right
    one_shot_cft.first  selection: the first row alone

Paper: Wang et al. 2025 (One-shot CFT), arXiv:2506.03295, sec. 2 (one problem, about 100 solutions of
several models, critiques of several teachers, kept where the verdict agrees with the answer).
TIGER-AI-Lab/One-Shot-CFT at 296d620c has the data and ms-swift's trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.demonstrations import expert_rollout
from vlrl.methods.common.prompts import derived_row, neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Engine, Select, StepCounts, transient
from vlrl.types import Group, Prompt, Request, Row


@register("one_shot_cft.first")
@dataclass(frozen=True)
class OneShotCftFirst(Select):
    """One-shot CFT's selection: row number `place` alone (0: the first). Raises ConfigError where there is
    none."""

    place: int = 0

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        if not 0 <= self.place < len(rows):
            raise ConfigError(f"select: 'one_shot_cft.first': no row {self.place} among {len(rows)}")
        return [rows[self.place]]


@dataclass
class OneShotCftState(StepCounts):
    """`teachers` are the opened engines."""

    teachers: list[Any] = transient(factory=list)


@register("one_shot_cft")
@dataclass(frozen=True)
class OneShotCft(Independent):
    """One-shot CFT's data: the policy solves each prompt n times; every teacher writes a critique of each
    solution (`ask`), which is kept where its verdict, the text behind the last `verdict`, is what the
    reward says.

    Groups hold the kept critiques, one group per solution, as demonstrations (source "expert") after the
    prompt that shows question and solution; for loss term `nll`. Paper: arXiv:2506.03295, sec. 2.2. Deviates:
    the solutions are the policy's (there ten open models'); the words are ours. Logs the critiques and the
    share that is kept.

    Attributes:
        teachers: By name, configs of their engines, each with weights of its own.
    """

    state_class = OneShotCftState
    teachers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    task: str = "critique"
    ask: str = (
        "{question}\n\nA solution:\n{solution}\n\nCritique it step by step, and end with "
        '"Conclusion: right" or '
        '"Conclusion: wrong".'
    )
    verdict: str = "Conclusion:"
    max_tokens: int = 1024

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if not self.teachers:
            raise ConfigError(
                "rollout.teachers: none is named; give one, for instance "
                "{big: {name: openai, url: http://host:8000/v1, "
                "model: name}}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        for name, spec in self.teachers.items():
            teacher = build(Engine, dict(spec), f"rollout.teachers.{name}")
            teacher.setup(run)
            self.state.teachers.append(teacher)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        right: dict[str, bool] = {}
        rows = []
        for group in groups:
            for place, rollout in enumerate(group):
                question = self.ask.replace("{solution}", neutralised(rollout.text))
                question = question.replace("{question}", group.row.question)
                row = derived_row(group.row, f"critique-{place}", question, group.row.answer, self.task)
                rows.append(row)
                right[row.id] = rollout.correct
        asked = prompts_within_limit(run, rows)
        found = [Group(prompt, []) for prompt in asked]
        for teacher in self.state.teachers:
            requests = [
                Request(prompt, replace(run.sampling(prompt, 0), max_tokens=self.max_tokens), tag=place)
                for place, prompt in enumerate(asked)
            ]
            for completion in teacher.generate(requests):
                group = found[completion.request.tag]
                said = self.said(completion.text)
                kept = said is not None and said is right[group.row.id]
                self.state.add(critiques=1, kept=kept)
                if kept:
                    group.rollouts.append(expert_rollout(group.prompt, completion.text, run))
        return found

    def said(self, text: str) -> bool | None:
        """A critique's verdict; None without one."""
        word = text.rpartition(self.verdict)[2].strip().lower() if self.verdict in text else ""
        return True if word.startswith("right") else False if word.startswith("wrong") else None

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {
            **self.state.totals("one_shot_cft", "critiques"),
            "one_shot_cft/kept": self.state.share("kept", "critiques"),
        }
