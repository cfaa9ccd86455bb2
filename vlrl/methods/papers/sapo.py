"""A soft gate instead of a clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.registry import register
from vlrl.stages import PolicyLoss
from vlrl.types import LossInputs, PerToken


@register("sapo")
@dataclass(frozen=True)
class SAPO(PolicyLoss):
    """L = -f(r) A with f(r) = 4 / tau * sigmoid(tau (r - 1)); tau is `positive` for A > 0, else `negative`.

    f'(1) = 1, so that on the old policy the gradient is REINFORCE's, and it fades smoothly on both sides.
    Paper: Gao et al. 2025 (Qwen), arXiv:2511.20347, eq. 5-7; temperatures 1.0 and 1.05 from sec. 5.
    """

    positive: float = 1.0
    negative: float = 1.05

    def __call__(self, x: LossInputs) -> PerToken:
        ratio_BT = x.log_ratio_BT.exp()
        tau_BT = torch.where(x.advantage_BT > 0, self.positive, self.negative)
        gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * 4 / tau_BT
        return PerToken(-gate_BT * x.advantage_BT, {"ratio": ratio_BT.detach()})
