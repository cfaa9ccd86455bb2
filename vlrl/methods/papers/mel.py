"""MEL: the policy compares a right and a wrong solution of its own, writes down the lesson, and learns the
lessons that help it to solve the problem again.

Paper: Meta-Experience Learning, arXiv:2602.10224, sec. 3: explorative rollouts, construction of
meta-experience from contrastive pairs, replay with the experience in context, internalisation by its
negative log-likelihood. No released code was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import check_task, derived_row, neutralised, prompts_within_limit, with_text
from vlrl.methods.core.rollout import Independent
from vlrl.methods.papers.svs import SOLVE_RATE
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt, Row


@register("mel")
@dataclass(frozen=True)
class Mel(Independent):
    """MEL's meta-experience: for every prompt with a right and a wrong rollout, the policy is shown one of
    each (`ask`) and writes a lesson; with the lesson behind the question it solves the problem `replays`
    times.

    A lesson is kept if that solves it more often than the group did (annotation SOLVE_RATE; source
    "experience"), as a group of its own, for the loss term `nll` with that source. Paper: arXiv:2602.10224,
    sec. 3.2-3.3. Deviates: the words; one pair per prompt; "validated" is more often than before; the lesson
    is learned after the prompt that asked for it. Edge: prompts above `max_prompt_tokens` are left out. Logs
    the lessons and the share that is kept.
    """

    state_class = StepCounts
    replays: int = 4
    task: str = "experience"
    ask: str = (
        "{question}\n\nA right solution:\n{right}\n\nA wrong solution:\n{wrong}\n\nWhere do they "
        "part? Say what went "
        "wrong there, and sum it up as a lesson for problems of this kind."
    )
    show: str = "\nA lesson from such problems: {lesson}"
    provides = (SOLVE_RATE,)

    def __post_init__(self) -> None:
        if self.replays < 1 or not all(f"{{{word}}}" in self.ask for word in ("right", "wrong")):
            raise ValueError(
                f"replays={self.replays} must be at least 1, and ask hold {{right}} and {{wrong}}"
            )

    def check(self, phase: PhaseContext) -> None:
        check_task(phase, self.name, self.task)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        asked = {row.id: (row, group) for group in groups if (row := self.contrast(group)) is not None}
        lessons = super().__call__(
            written := prompts_within_limit(run, [row for row, _ in asked.values()]), [1] * len(written), run
        )
        tried = [(lesson, asked[lesson.row.id][1]) for lesson in lessons if len(lesson)]
        shown = [
            with_text(group.prompt, self.show.format(lesson=neutralised(lesson.rollouts[0].text)))
            for lesson, group in tried
        ]
        again = super().__call__(shown, [self.replays] * len(shown), run)
        run.score(again)
        kept = []
        for (lesson, group), replay in zip(tried, again, strict=True):
            helps = success_rate(replay.rollouts) > success_rate(group.rollouts)
            rollout = lesson.rollouts[0]
            SOLVE_RATE.set(rollout, success_rate(replay.rollouts))
            rollout.source = "experience"
            kept += [lesson] if helps else []
        self.state.add(lessons=len(tried), kept=len(kept))
        return [*groups, *kept]

    def contrast(self, group: Group) -> Row | None:
        """The row that shows a right and a wrong rollout; None for a group without both."""
        found = {rollout.correct: rollout.text for rollout in reversed(group.rollouts)}
        if len(found) < 2:
            return None
        question = self.ask.replace("{right}", neutralised(found[True])).replace(
            "{wrong}", neutralised(found[False])
        )
        question = question.replace("{question}", group.row.question)
        return derived_row(group.row, "lesson", question, group.row.answer, self.task)

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {**self.state.totals("mel", "lessons"), "mel/kept": self.state.share("kept", "lessons")}
