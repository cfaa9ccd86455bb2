"""Dealing out rollouts: where the next one gains most, and in proportion to difficulty.

More rollouts where the policy, as capable as it is now, has most to gain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import RolloutBudget
from vlrl.types import Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext

SMOOTH = 0.01  # pass rates are held this far from 0 and 1


def saturation(rates: Sequence[float]) -> float:
    """tau = 3 + 9 v, v = the variance of the rates over 1/6, at most 1: how many rollouts it takes until more of them gain little."""
    held = [min(max(p, SMOOTH), 1 - SMOOTH) for p in rates]
    centre = math.fsum(held) / len(held)
    return 3 + 9 * min(math.fsum((p - centre) ** 2 for p in held) / len(held) / 0.1667, 1.0)


def gain(b: int, p: float, tau: float, alpha: float, kappa: float) -> float:
    """V(b + 1, p) - V(b, p), V = (1 - e^(-b p (1 - p) / tau)) p^(alpha - 1) (1 - p)^(kappa - alpha - 1). The Beta's constant changes no choice."""
    p = min(max(p, SMOOTH), 1 - SMOOTH)
    speed = p * (1 - p) / tau
    return math.exp(-b * speed) * -math.expm1(-speed) * p ** (alpha - 1) * (1 - p) ** (kappa - alpha - 1)


def greedy(counts: list[int], members: Sequence[int], rates: Sequence[float], budget: int, alpha: float, kappa: float, high: int) -> int:
    """Give `budget` more rollouts, one at a time, to the member that gains most; returns how many were given. Ties go to the first."""
    tau = saturation([rates[i] for i in members])
    heap = [(-gain(counts[i], rates[i], tau, alpha, kappa), i) for i in members if counts[i] < high]
    heapq.heapify(heap)
    given = 0
    while heap and given < budget:
        _, i = heapq.heappop(heap)
        counts[i] += 1
        given += 1
        if counts[i] < high:
            heapq.heappush(heap, (-gain(counts[i], rates[i], tau, alpha, kappa), i))
    return given


def weighted(counts: list[int], members: Sequence[int], rates: Sequence[float], budget: int, high: int) -> int:
    """Give `budget` more in proportion to 1 - p, and what rounding and `high` leave over one by one; returns how many were given."""
    weights = {i: max(1 - rates[i], 1e-6) for i in members}
    total, given = sum(weights.values()), 0
    for i in members:
        more = min(int(budget * weights[i] / total), high - counts[i])
        counts[i] += more
        given += more
    while given < budget and (room := [i for i in members if counts[i] < high]):
        for i in room[: budget - given]:
            counts[i] += 1
            given += 1
    return given


KEY = "coba_rl"


@register("coba_rl")
@dataclass(frozen=True)
class CobaRl(RolloutBudget):
    """Every prompt gets `low`; then, one by one, the prompt whose V(b, p) = (1 - e^(-b p (1 - p) / tau)) Beta(p; alpha, kappa - alpha) gains most.

    p is the pass rate over the prompt's last `window` visits (unknown: 0.5), alpha = 1 + (kappa - 2) F~ where F is the mean failure rate of the last
    `window` steps and F~ = F above 0.5, else sigmoid(10 (F - 0.5)). tau goes from 3 to 12 with the variance of p, up to 1/6. That greedy part is
    only for 0.05 <= p <= 0.99 and has 0.8 of what is left to give (down to 0.6 where such prompts are rare); the rest goes to prompts below 0.05,
    then those between, then those above, in proportion to 1 - p, none above `high`.
    Paper: Yao et al. 2026 (CoBA-RL), arXiv:2602.03048, eq. 5 to 9, algorithm 1; checked against budget_allocators.py and the script of the release
    (low 2, high 128, kappa 11, window 1), from which the three classes are. Deviates: the shares in proportion to
    1 - p are of the whole rest (the release takes each of what the one before left), and what rounding leaves is given one by one.
    Each rank deals out the rollouts of its own prompts; pass rates are learned from all. State: the failure rates; pass rates are in the history.
    Edge: no pass rate known, or a total below `low` each: equal shares. Right means a reward above `threshold`. Units: rollouts.
    """

    low: int = 2
    high: int = 128
    kappa: float = 11.0
    window: int = 1
    slot: str = ""
    threshold: float = 0.5
    run: Any = field(init=False, default=None, repr=False, compare=False)
    failures: list[float] = field(init=False, default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.kappa <= 2 or self.window < 1:
            raise ValueError(f"0 <= low={self.low} <= high={self.high}, kappa={self.kappa} above 2 and window={self.window} of at least 1 are needed")

    def check(self, run: RunContext) -> None:
        if not self.low <= run.group_size <= self.high:
            raise ConfigError(
                f"budget.low, budget.high: {self.low} and {self.high} leave no way to deal out {run.group_size} (group_size) rollouts per prompt; "
                "group_size must lie between them"
            )

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    @property
    def alpha(self) -> float:
        """The preference's first parameter: large (easy prompts) while the policy fails much."""
        if not self.failures:
            return self.kappa - 2
        failure = sum(self.failures) / len(self.failures)
        bent = failure if failure > 0.5 else 1 / (1 + math.exp(-10 * (failure - 0.5)))
        return min(max(1 + (self.kappa - 2) * bent, 1.0), self.kappa - 1)

    def rate(self, prompt: Prompt) -> float | None:
        """The pass rate of a prompt's last visits."""
        seen = self.run.history.get(prompt.row.id, {}).get(KEY, []) if self.run is not None else []
        total = sum(n for _, n in seen)
        return sum(hits for hits, _ in seen) / total if total else None

    def __call__(self, prompts: Sequence[Prompt], total: int) -> list[int]:
        known = [self.rate(prompt) for prompt in prompts]
        if total < self.low * len(prompts) or all(p is None for p in known):
            return [total // max(len(prompts), 1) + (i < total % max(len(prompts), 1)) for i in range(len(prompts))]
        rates = [0.5 if p is None else p for p in known]
        counts = [self.low] * len(rates)
        hard, between, easy = (
            [i for i, p in enumerate(rates) if test(p)] for test in (lambda p: p < 0.05, lambda p: 0.05 <= p <= 0.99, lambda p: p > 0.99)
        )
        left = total - sum(counts)
        share = 0.8 if len(between) > len(rates) / 2 else 0.6 + 0.4 * len(between) / len(rates)
        left -= greedy(counts, between, rates, int(left * share), self.alpha, self.kappa, self.high) if between else 0
        for members in (hard, between, easy):
            left -= weighted(counts, members, rates, left, self.high)
        return counts

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        visits: dict[str, list[int]] = {}
        for group in groups:
            for rollout in group:
                visit = visits.setdefault(group.row.id, [0, 0])
                visit[0] += (rollout.rewards[self.slot] if self.slot else rollout.reward) > self.threshold
                visit[1] += 1
        for key, visit in visits.items():
            memory = self.run.history.setdefault(key, {})
            memory[KEY] = [*memory.get(KEY, []), visit][-self.window :]
        if visits:
            self.failures.append(1 - sum(hits / n for hits, n in visits.values()) / len(visits))
            del self.failures[: -self.window]

    def metrics(self) -> dict[str, float]:
        return {"budget/alpha": self.alpha}

    def state_dict(self) -> dict[str, Any]:
        return {"failures": list(self.failures)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.failures[:] = state["failures"]
