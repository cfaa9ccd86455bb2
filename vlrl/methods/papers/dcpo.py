"""DCPO: dynamic-adaptive clipping, smooth advantage standardisation and only-token-mean loss.

`dcpo` is the policy loss (clip bounds by token probability), `dcpo.smooth_advantage` the advantage estimator,
`dcpo.only_token_mean` the loss aggregation.

Paper: Yang et al. 2025 (DCPO), arXiv:2509.02333, eq. 6-12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.functional import aggregation_weights, clipped_ratio_loss
from vlrl.functional.exact import centred, mean, std
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator, LossAggregation, PolicyLoss, State
from vlrl.services.lazy import Tensor
from vlrl.types import Denominators, Group, LossInputs, UnreducedLoss


@dataclass
class DcpoSmoothAdvantageState(State):
    """`past` has, per row id, the count, sum and sum of squares of the row's rewards so far, and the number
    of its visits."""

    past: dict[str, list[float]] = field(default_factory=dict)


@register("dcpo.smooth_advantage")
@dataclass(frozen=True)
class DcpoSmoothAdvantage(AdvantageEstimator):
    """DCPO's smooth advantage: blends this step's standardised rewards with those over all visits of the
    prompt.

        A = the smaller in magnitude of ((i - 1) A_new + A_tot) / i and (A_new + (i - 1) A_tot) / i  on the
        i-th visit

    A_new is of this group's rewards, A_tot of all the prompt's rewards so far, each (r - mean) / (std + eps).
    Eq. 9-11. Edge: on a first visit it is GRPO; a group of equal rewards has a signal if the prompt's past
    differs from it.
    """

    state_class = DcpoSmoothAdvantageState
    eps: float = 1e-6
    visits = 2

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group(group.row.id, group.rewards) for group in groups]

    def of_group(self, key: str, rewards: Sequence[float]) -> list[float]:
        """Advantages of one group; updates the statistics of its row."""
        past = self.state.past
        count, total, squares, visits = past.get(key, [0.0, 0.0, 0.0, 0.0])
        count, total, visits = count + len(rewards), total + sum(rewards), visits + 1
        squares += sum(r * r for r in rewards)
        past[key] = [count, total, squares, visits]
        if not rewards:
            return []
        new = centred(rewards, std(rewards) + self.eps)
        centre = total / count if visits > 1 else mean(rewards)
        variance = max(squares - count * centre**2, 0.0) / max(count - 1, 1)
        deviation = math.sqrt(variance) if variance > 1e-12 else 0.0
        of_all = [(r - centre) / (deviation + self.eps) if deviation else 0.0 for r in rewards]
        pairs = [
            (((visits - 1) * n + t) / visits, (n + (visits - 1) * t) / visits) for n, t in zip(new, of_all)
        ]
        return [min(pair, key=abs) for pair in pairs]


@register("dcpo")
@dataclass(frozen=True)
class DCPO(PolicyLoss):
    """DCPO's dynamic-adaptive clip: PPO's clipped loss with bounds from |(r - 1) r q| <= eps, so that rare
    tokens may move further.

        0.5 + 0.5 sqrt(max(1 - 4 low / q, 0)) <= r <= min(0.5 + 0.5 sqrt(1 + 4 high / q), r_max),  q = pi_old
        of the token

    Eq. 6-8 (low 0.16, high 0.2, r_max 10). Edge: the lower bound of a token with q below 4 low is 0.5.
    """

    low: float = 0.16
    high: float = 0.2
    r_max: float = 10.0

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        q_BT = x.old_logp_BT.exp().clamp(min=1e-12)
        lower_BT = 0.5 + 0.5 * (1 - 4 * self.low / q_BT).clamp(min=0).sqrt()
        upper_BT = (0.5 + 0.5 * (1 + 4 * self.high / q_BT).sqrt()).clamp(max=self.r_max)
        return clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, 1 - lower_BT, upper_BT - 1)


@register("dcpo.only_token_mean")
@dataclass(frozen=True)
class DcpoOnlyTokenMean(LossAggregation):
    """DCPO's only-token-mean: the sum over rollouts of the mean over a rollout's tokens, not divided by the
    number of rollouts.

    Eq. 12. The gradient grows with the batch; scale the learning rate or rely on an adaptive optimizer.
    """

    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        return aggregation_weights(x.mask_BT, "sequence_mean_sum")
