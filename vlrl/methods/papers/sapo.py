"""SAPO: soft adaptive policy optimization, a sigmoid gate on the importance ratio in place of PPO's clip.

Paper: Gao et al. 2025 (Qwen), arXiv:2511.20347.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import sapo_loss
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.types import LossInputs, UnreducedLoss


@register("sapo")
@dataclass(frozen=True)
class SAPO(PolicyLoss):
    """SAPO's policy loss: L = -f(r) A with f(r) = 4 / tau * sigmoid(tau (r - 1)); tau is `positive` for A >
    0, else `negative`.

    r = pi / pi_old of the token. f'(1) = 1, so on the old policy the gradient is that of REINFORCE, and it
    decays smoothly on both sides. Paper: Gao et al. 2025 (Qwen), arXiv:2511.20347, eq. 5-7; temperatures 1.0
    and 1.05 from sec. 5.
    """

    positive: float = 1.0
    negative: float = 1.05

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return sapo_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.positive, self.negative)
