"""A2D: a decomposer learns to write sub-questions that help; then the reasoner sees them where it fails,
and learns what it solved with them without them.

    a2d.decompose   rollout strategy of the first phase: sub-questions, each tried by the policy itself
    a2d.quality     reward shaping of the first phase: what the sub-questions are worth
    a2d             rollout strategy of the second phase: failed prompts are tried again with sub-questions

Paper: A2D, arXiv:2602.00759: the decomposer is trained by RLVR without distillation, by a format reward and
a quality reward in the manner of pass@k; annotation; the reasoner with guidance and in-context
distillation. No released code was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import (
    check_task,
    derived_row,
    neutralised,
    prompts_within_limit,
    with_text,
    within_limit,
)
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, StepCounts
from vlrl.types import Group, Prompt

QUALITY: Annotation[float] = Annotation(
    "a2d.quality",
    float,
    hint="rollout: {name: a2d.decompose}",
    doc="the chance that one of the tries with the rollout's sub-questions is right",
)
KEY = "sub_questions"  # in a row's memory (`run.history`): {"text", "rate"} of the best decomposition
SHOW = "\nSub-questions that lead to the answer:\n{questions}"


@register("a2d.decompose")
@dataclass(frozen=True)
class A2dDecompose(Independent):
    """A2D's decomposer: the policy is asked for the sub-questions of each problem, and solves the problem
    `solves` times with each answer to that.

    QUALITY is 1 - (share that fails)^`solves`: the chance that one of as many tries is right, for the
    shaping `a2d.quality`. The best decomposition of a row goes into the run's history. Paper:
    arXiv:2602.00759 (quality reward in the manner of pass@k). Deviates: the words; the reasoner is the
    policy of the step."""

    solves: int = 4
    task: str = "decompose"
    ask: str = (
        "Write the sub-questions whose answers, in their order, lead to the answer of this problem, inside "
        "<questions> </questions> tags. Do not answer them.\n{question}"
    )
    provides = (QUALITY,)

    def check(self, phase: PhaseContext) -> None:
        check_task(phase, self.name, self.task)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        given = {f"{prompt.row.id}/split": prompt for prompt in prompts}
        rows = [
            derived_row(
                p.row, "split", self.ask.replace("{question}", p.row.question), p.row.answer, self.task
            )
            for p in prompts
        ]
        asked = prompts_within_limit(run, rows)
        groups = super().__call__(asked, [run.group_size] * len(asked), run)
        pairs = [(group, rollout) for group in groups for rollout in group]
        shown = [
            with_text(given[group.row.id], SHOW.format(questions=neutralised(rollout.text)))
            for group, rollout in pairs
        ]
        solved = super().__call__(shown, [self.solves] * len(shown), run)
        run.score(solved)
        for (group, rollout), tries in zip(pairs, solved, strict=True):
            rate = 1 - (1 - success_rate(tries.rollouts)) ** self.solves
            QUALITY.set(rollout, rate)
            memory = run.history.setdefault(given[group.row.id].row.id, {})
            if rate > memory.get(KEY, {"rate": 0.0})["rate"]:
                memory[KEY] = {"text": neutralised(rollout.text), "rate": rate}
            group.rollouts += tries.rollouts
            for one in tries:
                one.trained = False  # the decomposer alone learns
        return groups


@register("a2d.quality")
@dataclass(frozen=True)
class A2dQuality(RewardShaping):
    """A2D's quality reward: r <- r + weight QUALITY. Paper: arXiv:2602.00759; its weight is ours. Edge:
    rollouts without sub-questions keep their reward."""

    weight: float = 1.0
    requires = (QUALITY,)

    def __call__(self, group: Group) -> list[float]:
        return [rollout.reward + self.weight * QUALITY.get(rollout, 0.0) for rollout in group]


@register("a2d")
@dataclass(frozen=True)
class A2d(Independent):
    """A2D's guidance: a prompt whose rollouts are all wrong is sampled `retries` times more with its kept
    sub-questions; right ones take the places of wrong rollouts, with the plain prompt to train on.

    Paper: arXiv:2602.00759 (adaptive guidance, in-context distillation). Deviates: the distillation is the
    policy gradient on the plain prompt, with source "guided". Edge: a row without sub-questions (its memory,
    else `row.meta.sub_questions`) keeps its group. Logs the prompts that were guided and the share of right
    retries.
    """

    state_class = StepCounts
    retries: int = 4

    def __post_init__(self) -> None:
        if self.retries < 1:
            raise ValueError(f"retries={self.retries} must be at least 1")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        guided = {
            place: replace(shown, train=group.prompt)
            for place, group in enumerate(groups)
            if len(group) and not any(rollout.correct for rollout in group)
            if (shown := self.guided(group, run)) is not None and within_limit(shown, run)
        }
        again = super().__call__(list(guided.values()), [self.retries] * len(guided), run)
        run.score(again)
        for place, group in zip(guided, again, strict=True):
            right = [rollout for rollout in group if rollout.correct][: len(groups[place]) - 1]
            for rollout in right:
                rollout.source = "guided"
            groups[place].rollouts = [*groups[place].rollouts[: len(groups[place]) - len(right)], *right]
            self.state.add(guided=1, tried=len(group), solved=sum(r.correct for r in group))
        return groups

    def guided(self, group: Group, run: SamplingContext) -> Prompt | None:
        """The prompt with sub-questions; None without any."""
        kept = run.history.get(group.row.id, {}).get(KEY, {}).get("text", "")
        questions = kept or str(group.row.meta.get("sub_questions", ""))
        return with_text(group.prompt, SHOW.format(questions=questions)) if questions else None

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {**self.state.totals("a2d", "guided"), "a2d/solved": self.state.share("solved", "tried")}
