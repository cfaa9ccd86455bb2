"""Orcust's reward: a judge says of each step of a thought whether it keeps a list of principles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from vlrl.beside.judge import Question, check_judge
from vlrl.beside.process import STEP_VERDICTS
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import NoScore
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.judged import AsksJudge, no_score

GUI_PRINCIPLES = (
    "It names only what the screen shows",
    "It serves the task, and nothing that the task does not ask for",
    "It follows from the steps before it",
)
MAX_STEPS = 32  # of one thought


@register("principles")
@dataclass(frozen=True, kw_only=True)
class PrinciplesKept(AsksJudge):
    """Orcust's principle-constrained reward of steps: the share of a thought's steps that keep all
    `principles`, by a judge that sees the screen.

        r = steps that keep them / steps

    The steps are the lines of the response's <think> block; the judge is asked about each of them once, and
    about the first 32 at most. Writes STEP_VERDICTS, for credit per step. Principles that an environment can
    verify (an action's type, place and text) are rewards of their own (`gui_action`).
    Paper: Lu et al. 2025 (Orcust), arXiv:2509.17917, from public summaries; the words, the steps and the mean
    are ours. Edge: without a thought r = 0 and the judge is not asked; where one verdict is missing there is
    no score. 0 to 1.
    """

    reads_answer: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    provides = (STEP_VERDICTS,)
    principles: tuple[str, ...] = GUI_PRINCIPLES

    def __post_init__(self) -> None:
        if not self.principles:
            raise ValueError("principles: the list is empty; name at least one")

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    @property
    def form_marks(self) -> tuple[str, ...]:
        return ("<think>",)

    def steps(self, rollout: Rollout) -> list[tuple[int, str]]:
        """(end in characters, text) of each step of a response's thought."""
        thought = re.search(r"<think>(.*?)</think>", rollout.text, re.DOTALL)
        if thought is None:
            return []
        lines = re.finditer(r"[^\n]*\S[^\n]*", thought[1])
        return [(thought.start(1) + line.end(), line[0].strip()) for line in lines][:MAX_STEPS]

    def questions(self, group: Group) -> list[Question]:
        listed = "\n".join(f"- {principle}" for principle in self.principles)
        found = []
        for rollout in group:
            for _, text in self.steps(rollout):
                values = (("question", rollout.row.question), ("answer", text), ("criteria", listed))
                found.append(Question(values, rollout.prompt.images, rollout.prompt.videos))
        return found

    def score_group(self, group: Group) -> list[float | NoScore]:
        found = iter(self.judgements(self.questions(group)))
        scores: list[float | NoScore] = []
        for rollout in group:
            steps = self.steps(rollout)
            verdicts = [next(found) for _ in steps]
            unread = next((verdict for verdict in verdicts if verdict.value is None), None)
            if unread is not None:
                scores.append(no_score(self, unread))
                continue
            values = [verdict.value or 0.0 for verdict in verdicts]
            STEP_VERDICTS.set(rollout, [(end, value) for (end, _), value in zip(steps, values, strict=True)])
            scores.append(sum(values) / len(values) if values else 0.0)
        return scores
