"""DARS: difficulty-adaptive rollout sampling, further rollouts for the prompts with a low accuracy.

`dars` is a rollout strategy; breadth (DARS-B) is a large `prompts_per_step` with one mini-batch
(configs/methods/dars.yaml).

Paper: Yang et al. 2025 (DARS), arXiv:2508.13755; checked against schedule_ET, schedule_HW and fit of the
release: yangzhch6/DARS at 9b21b714, verl/verl/trainer/ppo/ray_dars_trainer.py (its README gives max_total 32
and 64). Deviates: nothing known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.rollout import Independent, score_into_groups
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt


@register("dars")
@dataclass(frozen=True)
class Dars(Independent):
    """DARS: n rollouts of every prompt, then further ones for those with an accuracy a below 1/2.

        dN = min(ceil((P T - n S) / S), max_total - n)
        S = 2 a (1 - a), P = n / 2;  with `std` S = 2 sqrt(a (1 - a)), P = n

    T = 1 for the schedule "equal", 2 (1 - a) for "hardness"; a = 0 counts as 1 / (2n). "equal" gives a hard
    prompt the summed |advantage| of a prompt that is solved half of the time; "hardness" gives harder prompts
    more. `std` belongs to an advantage that divides by the standard deviation. For n = 8 and a = 0, 1/8, 2/8,
    3/8 the totals are 32, 19, 11, 9 ("equal", max_total 32) and 64, 32, 16, 11 ("hardness", max_total 64).
    Edge: a prompt with count 0 gets nothing, one with `max_total` rollouts no more.
    """

    state_class = StepCounts
    schedule: Literal["equal", "hardness"] = "equal"
    max_total: int = 32
    std: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in ("equal", "hardness") or self.max_total < 1:
            raise ValueError(
                f"schedule={self.schedule!r} must be equal or hardness, and max_total={self.max_total} at "
                "least 1"
            )

    def further(self, accuracy: float, n: int) -> int:
        """The number of further rollouts of a prompt with this accuracy over n rollouts."""
        a = accuracy if accuracy > 1e-6 else 0.5 / n
        if a >= 0.5:
            return 0
        one = 2 * math.sqrt(a * (1 - a)) if self.std else 2 * a * (1 - a)
        peak = (n if self.std else 0.5 * n) * (2 * (1 - a) if self.schedule == "hardness" else 1)
        return max(min(math.ceil((peak - n * one) / one), self.max_total - n), 0)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        unsolved = [len(group) > 0 and success_rate(group.rollouts) == 0 for group in groups]
        missing = [
            self.further(success_rate(group.rollouts), len(group)) if len(group) else 0 for group in groups
        ]
        added = score_into_groups(
            groups, self.draw([(group.prompt, n, ()) for group, n in zip(groups, missing)], run), run
        )
        self.state.add(
            added_rollouts=sum(map(len, added)),
            solved_by_added=sum(failed and success_rate(new) > 0 for failed, new in zip(unsolved, added)),
        )
        return groups

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The step's further rollouts, and the prompts that only these solved."""
        return self.state.totals("dars", "added_rollouts", "solved_by_added")
