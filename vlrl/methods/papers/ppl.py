"""PPL and position: two ways to shape advantages, by the perplexity of a rollout and by the position of a
token.

    ppl              advantage: GRPO, larger for rollouts that the policy finds likely
    ppl.late_bonus   token credit: a bonus that grows along the rollout

Paper: Deng et al. 2025, arXiv:2508.02260, sec. 5.1 and 5.2, with released code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vlrl.functional.exact import mean, std
from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenCredit
from vlrl.types import Group, Rollout


@register("ppl")
@dataclass(frozen=True)
class Ppl(GRPO):
    """Perplexity-based advantage: A_i = GRPO_i * clip(1 - alpha w_i, 1 - bound, 1 + bound).

    w are the log-perplexities of a group's rollouts, standardised without outliers, so that likely rollouts
    are favoured. Paper: Deng et al. 2025, arXiv:2508.02260, sec. 5.1; alpha, the bounds (0.8 and 1.2) and the
    outlier rule (1.5 interquartile ranges) as in the released code. Deviates: that code forms the factor and
    does not apply it where likely rollouts are favoured; here it is applied, as in the paper. Edge: equal
    perplexities change nothing.
    """

    alpha: float = 0.01
    bound: float = 0.2

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group, row in zip(groups, super().__call__(groups), strict=True):
            weights = standardised([log_perplexity(rollout) for rollout in group]) if len(group) else []
            result.append(
                [
                    a * min(max(1 - self.alpha * w, 1 - self.bound), 1 + self.bound)
                    for a, w in zip(row, weights, strict=True)
                ]
            )
        return result


def log_perplexity(rollout: Rollout) -> float:
    """The mean of -log pi over a rollout's trained tokens (nats)."""
    logp = [
        value
        for value, trained in zip(rollout.signals.get("old_logp") or rollout.logp, rollout.trained_mask)
        if trained
    ]
    return -math.fsum(logp) / max(len(logp), 1)


def standardised(values: Sequence[float]) -> list[float]:
    """(v - mean) / std, both of the values within 1.5 interquartile ranges of the middle half; a std up to
    1e-6 counts as 1."""
    low, high = quantile(values, 0.25), quantile(values, 0.75)
    margin = 1.5 * (high - low)
    inliers = [v for v in values if low - margin <= v <= high + margin] or list(values)
    centre, spread = mean(inliers), std(inliers, unbiased=False)
    return [(v - centre) / (spread if spread > 1e-6 else 1.0) for v in values]


def quantile(values: Sequence[float], share: float) -> float:
    """Linearly interpolated, as numpy and torch do by default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


@register("ppl.late_bonus")
@dataclass(frozen=True)
class PplLateBonus(TokenCredit):
    """Position bonus: A_{i,t} = A_i + sign(A_i) min(gamma sigmoid(steepness (t / n - 1/2)), |A_i| / 2), t the
    trained tokens before it, n all.

    Paper: Deng et al. 2025, arXiv:2508.02260, sec. 5.2; gamma 0.1, steepness 15 and the bound as in the
    released code. Edge: A = 0 stays 0.
    """

    gamma: float = 0.1
    steepness: float = 15.0

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            n, before = max(rollout.trained_tokens, 1), accumulate(rollout.trained_mask, initial=0)
            bonus = [
                self.gamma / (1 + math.exp(-self.steepness * (t / n - 0.5)))
                for t, _ in zip(before, rollout.ids)
            ]
            result.append([a + math.copysign(min(b, abs(a) / 2), a) for b in bonus])
        return result
