"""SvS: self-play with variational problem synthesis. The policy writes variants of problems that it often fails, from its own correct solutions.

    svs                  rollout strategy: solves the problems, writes variants of some, and solves these
    svs.problem_reward   reward shaping: rewards a variant that is neither trivial nor too hard

Paper: Liang et al. 2025 (SvS), arXiv:2508.14029; the release could not be read, some numbers are from published notes on the paper and its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.capabilities import Annotation, Capability
from vlrl.context import RunContext
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import check_task, derived_row, neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group, Prompt, Rollout, Row

PROBLEM_REWARD = Capability("svs.problem_reward", hint="reward_shaping: {svs: {name: svs.problem_reward}}")
SOLVE_RATE: Annotation[float] = Annotation(
    "svs.solve_rate", float, hint="rollout: {name: svs}", doc="share of correct solutions of the problem that the rollout wrote; 0 without a problem"
)


@register("svs")
@dataclass(frozen=True)
class Svs(Independent):
    """SvS: where low <= accuracy <= high, each correct solution is the prompt for `variants` new problems with its answer; n rollouts solve each.

    Three kinds of groups are trained on: the given problems; the writing (task `task`, prompt `ask` with {solution}), whose annotation
    SOLVE_RATE is the share of correct solutions of the problem between `open` and `close` (0: no such problem) and whose reward is that of
    `svs.problem_reward`; and the written problems, scored as the given one is.
    Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, sec. 3; low 0.125, high 0.5, 8 variants as in published notes on the paper and its code (the
    release itself could not be read). Deviates: the words of `ask` are ours; `solutions` limits how many correct solutions are used (0: all).
    Variants have the pictures of the given problem. Edge: a problem that is too long for a prompt is not solved, so its SOLVE_RATE is 0.
    """

    low: float = 0.125
    high: float = 0.5
    variants: int = 8
    solutions: int = 0
    task: str = "synthesis"
    ask: str = (
        "Here is the solution of a problem:\n{solution}\nWrite another problem, differently put and built, that has the same final answer. Do not "
        "give the answer away. Put the problem between <problem> and </problem>."
    )
    open: str = "<problem>"
    close: str = "</problem>"
    provides = (SOLVE_RATE,)
    requires = (PROBLEM_REWARD,)

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1 or self.variants < 1 or self.solutions < 0:
            limits = f"variants={self.variants} >= 1 and solutions={self.solutions} >= 0"
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1, {limits} are needed")
        if "{solution}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must contain {{solution}}")

    def check(self, run: RunContext) -> None:
        check_task(run, self.name, self.task)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        writing = {row.id: (row, group.row) for group in groups for row in self.writing_rows(group)}
        writing_prompts = prompts_within_limit(run, [row for row, _ in writing.values()])
        written = super().__call__(writing_prompts, [self.variants] * len(writing_prompts), run)
        problems: dict[str, tuple[Row, Rollout]] = {}
        for group in written:
            given = writing[group.row.id][1]
            for place, rollout in enumerate(group):
                SOLVE_RATE.set(rollout, 0.0)
                text = self.problem(rollout.text)
                if text:
                    suffix = f"{group.row.id.removeprefix(given.id + '/')}-{place}"
                    row = derived_row(given, suffix, text, given.answer, given.task, given.rewards)
                    problems[row.id] = (row, rollout)
        problem_prompts = prompts_within_limit(run, [row for row, _ in problems.values()])
        solved = super().__call__(problem_prompts, [run.group_size] * len(problem_prompts), run)
        run.score(solved)
        for group in solved:
            if len(group):
                SOLVE_RATE.set(problems[group.row.id][1], success_rate(group.rollouts))
        return groups + written + solved

    def writing_rows(self, group: Group) -> list[Row]:
        """Rows that ask for variants, one per correct solution of a problem whose accuracy is in [low, high]."""
        if not len(group) or not self.low <= success_rate(group.rollouts) <= self.high:
            return []
        correct = [(place, rollout) for place, rollout in enumerate(group) if rollout.correct]
        return [
            derived_row(group.row, f"write-{place}", self.ask.replace("{solution}", neutralised(rollout.text)), group.row.answer, self.task)
            for place, rollout in correct[: self.solutions or len(correct)]
        ]

    def problem(self, text: str) -> str:
        """The text between the last `open` and the `close` after it; "" without these marks."""
        inside, closed, _ = text.rpartition(self.open)[2].partition(self.close)
        return neutralised(inside) if closed and self.open in text else ""


@register("svs.problem_reward")
@dataclass(frozen=True)
class SvsProblemReward(RewardShaping):
    """SvS's reward of a written problem: 1 if low <= solve rate <= high, else 0 (also without a problem). Other rollouts keep their reward.

    Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, eq. 4; low 0.125 and high 0.625 as in published notes on the paper and its code.
    """

    low: float = 0.125
    high: float = 0.625
    provides = (PROBLEM_REWARD,)
    requires = (SOLVE_RATE,)

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1:
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1 is needed")

    def __call__(self, group: Group) -> list[float]:
        return [float(self.low <= SOLVE_RATE[r] <= self.high) if SOLVE_RATE.on(r) else r.reward for r in group]
