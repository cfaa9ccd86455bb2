"""Targeted entropy regularisation of Confucius3-Math: pulls the entropy of each rollout towards a target
value.

Paper: NetEase Youdao 2025 (Confucius3-Math), arXiv:2506.18330.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossTerm
from vlrl.types import LossInputs, UnreducedLoss


@register("ter")
@dataclass(frozen=True, kw_only=True)
class Ter(LossTerm):
    """Targeted entropy regularisation: |mean_t H_t - target| per rollout (nats), which raises a low entropy
    and lowers a high one.

    Paper: NetEase Youdao 2025 (Confucius3-Math, targeted entropy regularisation), arXiv:2506.18330, sec. 3
    (target 0.55, coefficient 0.001). Deviates: the mean is each rollout's, so that the split into
    micro-batches does not matter.  The loss is per sequence.
    """

    coef: float = 0.001
    target: float = 0.55
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        mean_B = (x["entropy"] * x.mask_BT).sum(-1) / x.length_B
        return UnreducedLoss((mean_B - self.target).abs(), {"entropy_gap": (mean_B - self.target).detach()})
