"""Problems that the policy writes itself, out of its right solutions of problems that it often fails, and solves.

A problem that the policy wrote is worth something if it is neither trivial nor beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.common.derived_prompts import accuracy, check_task, derived, fitting, harmless
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Group, Prompt, Rollout, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("svs")
@dataclass(frozen=True)
class Svs(Independent):
    """Where low <= accuracy <= high, each right solution is the prompt of `variants` new problems with its answer; n rollouts solve each of them.

    The three kinds of groups are learned from together: the given problems; the writing (task `task`, prompt `ask` with {solution}), for which
    `rollout.info["solve_rate"]` is the share of right solutions of the problem between `open` and `close` (0: no such problem), paid by shape
    `svs`; and the written problems, scored as the given one is.
    Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, sec. 3; low 0.125, high 0.5, 8 variants as in published notes on the paper and its code (the
    release itself could not be read). Deviates: the words of `ask` are ours; `solutions` can limit how many right solutions are taken (0: all).
    Pictures of the given problem go with its variants. Edge: a problem that is too long for a prompt counts as none.
    """

    low: float = 0.125
    high: float = 0.5
    variants: int = 8
    solutions: int = 0
    least: float = 0.5
    slot: str = ""
    task: str = "synthesis"
    ask: str = (
        "Here is the solution of a problem:\n{solution}\nWrite another problem, differently put and built, that has the same final answer. Do not "
        "give the answer away. Put the problem between <problem> and </problem>."
    )
    open: str = "<problem>"
    close: str = "</problem>"

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1 or self.variants < 1 or self.solutions < 0:
            limits = f"variants={self.variants} >= 1 and solutions={self.solutions} >= 0"
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1, {limits} are needed")
        if "{solution}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must hold {{solution}}")

    def check(self, run: RunContext) -> None:
        check_task(run, "svs", self.task, self.slot)
        if not any(shape.name == "svs.problem_reward" for shape in run.reward_shaping.values()):
            raise ConfigError("strategy svs lets the policy write problems that nothing pays for; add shape: {svs: {name: svs}}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        writing = {row.id: (row, group.row) for group in groups for row in self.to_write(group, run)}
        asked = fitting(run, [row for row, _ in writing.values()])
        written = super().__call__(asked, [self.variants] * len(asked), run)
        problems: dict[str, tuple[Row, Rollout]] = {}
        for group in written:
            given = writing[group.row.id][1]
            for place, rollout in enumerate(group):
                rollout.info["solve_rate"] = 0.0
                text = self.problem(rollout.text)
                if text:
                    suffix = f"{group.row.id.removeprefix(given.id + '/')}-{place}"
                    row = derived(given, suffix, text, given.answer, given.task, given.rewards)
                    problems[row.id] = (row, rollout)
        solvable = fitting(run, [row for row, _ in problems.values()])
        solved = super().__call__(solvable, [run.group_size] * len(solvable), run)
        run.score(solved)
        for group in solved:
            if len(group):
                problems[group.row.id][1].info["solve_rate"] = self.rate(group, run)
        return groups + written + solved

    def rate(self, group: Group, run: RunContext) -> float:
        """The share of right rollouts."""
        return sum(accuracy(run, rollout, self.slot) > self.least for rollout in group) / len(group)

    def to_write(self, group: Group, run: RunContext) -> list[Row]:
        """Rows that ask for variants, one per right solution of a problem that is neither easy nor out of reach."""
        if not len(group) or not self.low <= self.rate(group, run) <= self.high:
            return []
        right = [(place, rollout) for place, rollout in enumerate(group) if accuracy(run, rollout, self.slot) > self.least]
        return [
            derived(group.row, f"write-{place}", self.ask.replace("{solution}", harmless(rollout.text)), group.row.answer, self.task)
            for place, rollout in right[: self.solutions or len(right)]
        ]

    def problem(self, text: str) -> str:
        """What stands between the last `open` and the `close` after it."""
        inside, closed, _ = text.rpartition(self.open)[2].partition(self.close)
        return harmless(inside) if closed and self.open in text else ""


@register("svs.problem_reward")
@dataclass(frozen=True)
class SvsProblemReward(RewardShaping):
    """Problems that strategy `svs` let the policy write: r = 1 if low <= solve rate <= high, else 0 (also for no problem); others keep theirs.

    Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, eq. 4; low 0.125 and high 0.625 as in published notes on the paper and its code.
    """

    low: float = 0.125
    high: float = 0.625

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1:
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1 is needed")

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "svs":
            raise ConfigError(f"shape svs pays for problems that strategy {run.rollout.name!r} does not let write; use strategy: {{name: svs}}")

    def __call__(self, group: Group) -> list[float]:
        return [float(self.low <= r.info["solve_rate"] <= self.high) if "solve_rate" in r.info else r.reward for r in group]
