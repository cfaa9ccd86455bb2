"""CoBA-RL: capability-oriented budget allocation, more rollouts for the prompts from which the policy gains
most at its present capability.

`coba_rl` is a rollout budget.

Paper: Yao et al. 2026 (CoBA-RL), arXiv:2602.03048, eq. 5 to 9, algorithm 1; checked against
budget_allocators.py and the script of the release (low 2, high 128, kappa 11, window 1), where the three
classes of prompts are from.
Deviates: each rank allocates the rollouts of its own prompts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.plugins.contexts import PhaseContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RolloutBudget, State
from vlrl.types import Prompt

SMOOTH = 0.01  # pass rates are kept this far from 0 and 1
KEY = "coba_rl"  # of a row's memory in the run's history


@dataclass
class CobaRlState(State):
    """Mean failure rate of each of the last `window` steps."""

    failures: list[float] = field(default_factory=list)


@register("coba_rl")
@dataclass(frozen=True)
class CobaRl(RolloutBudget):
    """Capability-oriented budget: after `low` rollouts for every prompt, each further one goes to the prompt
    whose value V gains most.

        V(b, p) = (1 - e^(-b p (1 - p) / tau)) Beta(p; alpha, kappa - alpha)
        alpha = 1 + (kappa - 2) F~,  F~ = F above 0.5, else sigmoid(10 (F - 0.5))

    p is the pass rate over the prompt's last `window` visits (unknown: 0.5), F the mean failure rate of the
    last `window` steps; tau goes from 3 to 12 with the variance of p, up to 1/6. This greedy part is for
    prompts with 0.05 <= p <= 0.99 and gets 0.8 of what is left (0.6 where they are rare); the rest goes to
    prompts below 0.05, then between, then above, in proportion to 1 - p, none above `high`. Edge: no pass
    rate known, or a total below `low` each: equal shares. Units: rollouts.
    """

    state_class = CobaRlState
    low: int = 2
    high: int = 128
    kappa: float = 11.0
    window: int = 1
    visits = 2

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.kappa <= 2 or self.window < 1:
            raise ValueError(
                f"0 <= low={self.low} <= high={self.high}, kappa={self.kappa} above 2 and "
                f"window={self.window} of at least 1 are needed"
            )

    def check(self, phase: PhaseContext) -> None:
        if not self.low <= phase.group_size <= self.high:
            raise ConfigError(
                f"rollout_budget: low={self.low} and high={self.high} do not allow {phase.group_size} "
                "(group_size) rollouts per prompt; "
                "group_size must lie between them"
            )

    @property
    def alpha(self) -> float:
        """The first parameter of the Beta density: large (prefers easy prompts) while the policy fails
        often."""
        failures = self.state.failures
        if not failures:
            return self.kappa - 2
        failure = sum(failures) / len(failures)
        bent = failure if failure > 0.5 else 1 / (1 + math.exp(-10 * (failure - 0.5)))
        return min(max(1 + (self.kappa - 2) * bent, 1.0), self.kappa - 1)

    def rate(self, prompt: Prompt) -> float | None:
        """The pass rate of a prompt's last visits; None before the first."""
        visits = self.run.history.get(prompt.row.id, {}).get(KEY, [])
        total = sum(n for _, n in visits)
        return sum(correct for correct, _ in visits) / total if total else None

    def __call__(self, prompts: Sequence[Prompt], total: int) -> list[int]:
        known = [self.rate(prompt) for prompt in prompts]
        if total < self.low * len(prompts) or all(p is None for p in known):
            return [
                total // max(len(prompts), 1) + (i < total % max(len(prompts), 1))
                for i in range(len(prompts))
            ]
        rates = [0.5 if p is None else p for p in known]
        counts = [self.low] * len(rates)
        hard, between, easy = (
            [i for i, p in enumerate(rates) if test(p)]
            for test in (lambda p: p < 0.05, lambda p: 0.05 <= p <= 0.99, lambda p: p > 0.99)
        )
        left = total - sum(counts)
        share = 0.8 if len(between) > len(rates) / 2 else 0.6 + 0.4 * len(between) / len(rates)
        left -= (
            greedy(counts, between, rates, int(left * share), self.alpha, self.kappa, self.high)
            if between
            else 0
        )
        for members in (hard, between, easy):
            left -= proportional(counts, members, rates, left, self.high)
        return counts

    def end_step(self, run: StepContext) -> None:
        visits: dict[str, list[int]] = {}
        for group in run.answered_groups:
            for rollout in group:
                visit = visits.setdefault(group.row.id, [0, 0])
                visit[0] += rollout.correct
                visit[1] += 1
        for key, visit in visits.items():
            memory = run.history.setdefault(key, {})
            memory[KEY] = [*memory.get(KEY, []), visit][-self.window :]
        if visits:
            failure = 1 - sum(correct / n for correct, n in visits.values()) / len(visits)
            self.state.failures = [*self.state.failures, failure][-self.window :]

    def metrics(self) -> dict[str, float]:
        return {"coba_rl/alpha": self.alpha}


def saturation(rates: Sequence[float]) -> float:
    """tau = 3 + 9 v, v = the variance of the rates over 1/6, at most 1: the number of rollouts after which
    further ones gain little."""
    smooth = [min(max(p, SMOOTH), 1 - SMOOTH) for p in rates]
    centre = math.fsum(smooth) / len(smooth)
    return 3 + 9 * min(math.fsum((p - centre) ** 2 for p in smooth) / len(smooth) / 0.1667, 1.0)


def gain(b: int, p: float, tau: float, alpha: float, kappa: float) -> float:
    """V(b + 1, p) - V(b, p), V = (1 - e^(-b p (1 - p) / tau)) p^(alpha - 1) (1 - p)^(kappa - alpha - 1). The
    Beta's constant changes no choice."""
    p = min(max(p, SMOOTH), 1 - SMOOTH)
    speed = p * (1 - p) / tau
    return math.exp(-b * speed) * -math.expm1(-speed) * p ** (alpha - 1) * (1 - p) ** (kappa - alpha - 1)


def greedy(
    counts: list[int],
    members: Sequence[int],
    rates: Sequence[float],
    budget: int,
    alpha: float,
    kappa: float,
    high: int,
) -> int:
    """Add `budget` rollouts to `counts`, each to the member with the largest gain (ties: the first); returns
    how many were added."""
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


def proportional(
    counts: list[int], members: Sequence[int], rates: Sequence[float], budget: int, high: int
) -> int:
    """Add up to `budget` rollouts to `counts`: each member in turn gets its share, in proportion to 1 - p, of
    what those before it left; then equal parts of the rest, once. Returns how many were added."""
    weights = {i: min(max(1 - rates[i], 1e-6), 1 - 1e-6) for i in members if counts[i] < high}
    total, left = sum(weights.values()), budget
    for i, weight in weights.items():
        more = min(int(left * weight / total), high - counts[i])
        counts[i] += more
        left -= more
    room = [i for i in weights if counts[i] < high]
    share, rest = divmod(left, max(len(room), 1))
    for place, i in enumerate(room):
        more = min(share + (place < rest), high - counts[i])
        counts[i] += more
        left -= more
    return budget - left
