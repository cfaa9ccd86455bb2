"""Advantages smoothed over a prompt's past.

Clip bounds that widen for rare tokens.

Every rollout's own mean, added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vlrl.functional import aggregation_weights, clipped_ratio_loss
from vlrl.functional.exact import centred, mean, std
from vlrl.registry import register
from vlrl.stages import AdvantageEstimator, Denominators, LossAggregation, PolicyLoss
from vlrl.types import Group, LossInputs, PerToken


@register("dcpo.smooth_advantage")
@dataclass(frozen=True)
class DcpoSmoothAdvantage(AdvantageEstimator):
    """A = the smaller in magnitude of ((i - 1) A_new + A_tot) / i and (A_new + (i - 1) A_tot) / i on the i-th visit of a prompt.

    A_new is of this group's rewards, A_tot of all the prompt's rewards so far, each (r - mean) / (std + eps).
    Paper: Yang et al. 2025 (DCPO), arXiv:2509.02333, eq. 9-11.  Edge: on a first visit it is GRPO; a group of equal rewards has a signal if the
    prompt's past differs from it.  The past (count, sum, sum of squares, visits per row id) is in the checkpoint.
    """

    eps: float = 1e-6
    past: dict[str, list[float]] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group(group.row.id, group.rewards) for group in groups]

    def of_group(self, key: str, rewards: Sequence[float]) -> list[float]:
        """Advantages of one group, and the prompt's statistics brought up to date."""
        count, total, squares, visits = self.past.get(key, [0.0, 0.0, 0.0, 0.0])
        count, total, visits = count + len(rewards), total + sum(rewards), visits + 1
        squares += sum(r * r for r in rewards)
        self.past[key] = [count, total, squares, visits]
        if not rewards:
            return []
        new = centred(rewards, std(rewards) + self.eps)
        centre = total / count if visits > 1 else mean(rewards)
        variance = max(squares - count * centre**2, 0.0) / max(count - 1, 1)
        spread = math.sqrt(variance) if variance > 1e-12 else 0.0
        whole = [(r - centre) / (spread + self.eps) if spread else 0.0 for r in rewards]
        pairs = [(((visits - 1) * n + t) / visits, (n + (visits - 1) * t) / visits) for n, t in zip(new, whole)]
        return [min(pair, key=abs) for pair in pairs]

    def state_dict(self) -> dict[str, Any]:
        return {"past": {key: list(value) for key, value in self.past.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.past.clear()
        self.past.update(state["past"])


@register("dcpo")
@dataclass(frozen=True)
class DCPO(PolicyLoss):
    """PPO's clipped loss with bounds from |(r - 1) r q| <= eps, q = pi_old of the token: rare tokens may move further.

    0.5 + 0.5 sqrt(max(1 - 4 low / q, 0)) <= r <= min(0.5 + 0.5 sqrt(1 + 4 high / q), r_max).

    Paper: Yang et al. 2025, arXiv:2509.02333, eq. 6-8 (low 0.16, high 0.2, r_max 10).
    Edge: a token with q below 4 low is not bounded below 0.5.
    """

    low: float = 0.16
    high: float = 0.2
    r_max: float = 10.0

    def __call__(self, x: LossInputs) -> PerToken:
        q_BT = x.old_logp_BT.exp().clamp(min=1e-12)
        lower_BT = 0.5 + 0.5 * (1 - 4 * self.low / q_BT).clamp(min=0).sqrt()
        upper_BT = (0.5 + 0.5 * (1 + 4 * self.high / q_BT).sqrt()).clamp(max=self.r_max)
        return clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, 1 - lower_BT, upper_BT - 1)


@register("dcpo.only_token_mean")
@dataclass(frozen=True)
class DcpoOnlyTokenMean(LossAggregation):
    """sum over rollouts of the mean over a rollout's tokens: not divided by the number of rollouts.

    Paper: Yang et al. 2025 (DCPO), arXiv:2509.02333, eq. 12.  The gradient grows with the batch; scale the learning rate or rely on an adaptive
    optimizer.
    """

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return aggregation_weights(x.mask_BT, "sequence_mean_sum")
