"""Wide clipping for tokens that decide, narrow for tokens that know."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.methods._groups import top_share
from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("archer")
@dataclass(frozen=True)
class Archer(Surrogate):
    """PPO's clipped loss with range `high_entropy` for a rollout's `share` of tokens of highest entropy, `low_entropy` for the others.

    Paper: Wang et al. 2025, arXiv:2507.15778, eq. 6-8; the released 1.5B code script has 0.5, 0.2 and the 0.8 quantile. The KL side is term
    `archer_kl`.
    Deviates: entropies of the current forward, not of the pass before (equal on-policy).
    """

    high_entropy: float = 0.5
    low_entropy: float = 0.2
    share: float = 0.2
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> PerToken:
        decides_BT = top_share(x["entropy"], x.mask_BT, x.group_B, self.share, "rollout")
        range_BT = torch.where(decides_BT, self.high_entropy, self.low_entropy).to(x.logp_BT)
        return clipped(x.log_ratio_BT.exp(), x.advantage_BT, range_BT, range_BT)
