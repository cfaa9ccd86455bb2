"""DARS: difficulty-adaptive rollout sampling, further rollouts for the prompts with a low accuracy.

`dars` is a rollout strategy; breadth (DARS-B) is a large `prompts_per_step` with one mini-batch (configs/methods/dars.yaml).

Paper: Yang et al. 2025 (DARS), arXiv:2508.13755; checked against resample_func1, resample_func2 and fit of ray_dars_trainer.py. Deviates: nothing
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.context import RunContext
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.rollout import Independent, score_into_groups
from vlrl.registry import register
from vlrl.stages import State, transient
from vlrl.types import Group, Prompt


@dataclass
class DarsState(State):
    """Counts of the current step; `logged` has those of the last one."""

    added: float = transient(0.0)
    solved: float = transient(0.0)
    logged: dict[str, float] = transient(factory=dict)


@register("dars")
@dataclass(frozen=True)
class Dars(Independent):
    """DARS: n rollouts of every prompt; a prompt whose accuracy a is at most a bound of `totals` is sampled up to that bound's number.

    `totals` is ((a, number), ...) with rising a; the first bound that holds counts. All rollouts of a prompt are one group. The default is the
    equal-treatment schedule of the release for n = 8, whose numbers are 2 / (a (1 - a)), rounded, with 1/16 for a = 0, and at most 32: sum |A| =
    2 N a (1 - a) of a hard prompt becomes that of a prompt solved half of the time. Hardness-weighted: ((0, 48), (0.125, 24), (0.25, 12),
    (0.375, 9)), which is 3 / a but for the last.
    Edge: a prompt with count 0 gets nothing; prompts above the last bound, or with that many rollouts already, get no more.
    """

    totals: tuple[tuple[float, int], ...] = ((0.0, 32), (0.125, 18), (0.25, 11), (0.375, 9))

    def __post_init__(self) -> None:
        bounds = [bound for bound, _ in self.totals]
        if not bounds or bounds != sorted(set(bounds)) or not all(0 <= bound < 1 for bound in bounds) or min(n for _, n in self.totals) < 1:
            raise ValueError(f"totals={self.totals} must be [[accuracy, rollouts], ...] with rising accuracies in [0, 1)")

    def init_state(self) -> DarsState:
        return DarsState()

    def total(self, accuracy: float) -> int:
        """The number of rollouts for a prompt of this accuracy; 0: no further ones."""
        return next((number for bound, number in self.totals if accuracy <= bound + 1e-6), 0)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        unsolved = [len(group) > 0 and success_rate(group.rollouts) == 0 for group in groups]
        missing = [max(self.total(success_rate(group.rollouts)) - len(group), 0) if len(group) else 0 for group in groups]
        added = score_into_groups(groups, self.draw([(group.prompt, n, ()) for group, n in zip(groups, missing)], run), run)
        self.state.added += sum(map(len, added))
        self.state.solved += sum(failed and success_rate(new) > 0 for failed, new in zip(unsolved, added))
        return groups

    def end_step(self, run: RunContext) -> None:
        self.state.logged = {"added_rollouts": self.state.added, "solved_by_added": self.state.solved}
        self.state.added = self.state.solved = 0.0

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The step's further rollouts, and the prompts that only these solved."""
        return {f"dars/{name}": (value, 0.0) for name, value in self.state.logged.items()}
