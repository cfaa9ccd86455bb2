"""More attempts where few succeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.common.sampling_rounds import accuracy, score_rounds
from vlrl.methods.core.rollout import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("dars")
@dataclass(frozen=True)
class Dars(Independent):
    """n rollouts of every prompt; one whose accuracy a is at most a bound of `totals` gets more, up to that bound's number, all in one group.

    `totals` is ((a, number), ...) with rising a; the first bound that holds counts. The default is the equal-treatment schedule of the release for
    n = 8, whose numbers are 2 / (a (1 - a)), rounded, with 1/16 for a = 0, and at most 32: so sum |A| = 2 N a (1 - a) of a hard prompt becomes that
    of a prompt solved half of the time. Hardness-weighted: ((0, 48), (0.125, 24), (0.25, 12), (0.375, 9)), which is 3 / a but for the last.
    Paper: Yang et al. 2025 (DARS), arXiv:2508.13755; checked against resample_func1, resample_func2 and fit of ray_dars_trainer.py.
    Deviates: nothing known. Right means a reward above `threshold` (of `slot`, or the total). Edge: a prompt with count 0 gets nothing; prompts
    above the last bound, or with that many rollouts already, get no more.
    """

    totals: tuple[tuple[float, int], ...] = ((0.0, 32), (0.125, 18), (0.25, 11), (0.375, 9))
    slot: str = ""
    threshold: float = 0.5
    counted: dict[str, float] = field(init=False, default_factory=lambda: {"more": 0.0, "saved": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        bounds = [bound for bound, _ in self.totals]
        if not bounds or bounds != sorted(set(bounds)) or not all(0 <= bound < 1 for bound in bounds) or min(n for _, n in self.totals) < 1:
            raise ValueError(f"totals={self.totals} must be [[accuracy, rollouts], ...] with rising accuracies in [0, 1)")

    def total(self, share: float) -> int:
        """How many rollouts a prompt of this accuracy should have."""
        return next((number for bound, number in self.totals if share <= bound + 1e-6), 0)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        lost = [bool(len(group)) and accuracy(group.rollouts, self.threshold, self.slot) == 0 for group in groups]
        more = [max(self.total(accuracy(group.rollouts, self.threshold, self.slot)) - len(group), 0) if len(group) else 0 for group in groups]
        again = score_rounds(groups, self.draw([(group.prompt, n, ()) for group, n in zip(groups, more)], run), run)
        self.counted["more"] += sum(map(len, again))
        self.counted["saved"] += sum(was and accuracy(new, self.threshold, self.slot) > 0 for was, new in zip(lost, again))
        return groups

    def metrics(self) -> dict[str, tuple[float, float]]:
        """This step's further rollouts, and the prompts that only they solved."""
        out = {f"resample/{name}": (value, 0.0) for name, value in self.counted.items()}
        self.counted.update(more=0.0, saved=0.0)
        return out
