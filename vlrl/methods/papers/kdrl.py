"""KDRL: knowledge distillation and reinforcement learning on the same samples, by a reverse KL to a teacher
beside GRPO.

    kdrl   loss term: `distill` on the sampled tokens, annealed and optionally masked

Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208, eq. 8. No code of the authors was found; inclusionAI/AReaL has
its joint loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.functional import group_mean
from vlrl.methods.common.correctness import correct_rollouts
from vlrl.methods.core.distillation import Distill
from vlrl.plugins.registry import register
from vlrl.services.lazy import torch
from vlrl.types import LossInputs, UnreducedLoss


@register("kdrl")
@dataclass(frozen=True, kw_only=True)
class Kdrl(Distill):
    """KDRL's distillation loss: beta_t m D(pi, T), by default the reverse KL on the sampled tokens, whose
    gradient is that of k2 = (log pi - log pi_T)^2 / 2.

        beta_t = max(end, start - (start - end) step / anneal), times `coef`

    m is 1 everywhere (`mask` "none"), 0 on correct rollouts ("response"), or 0 on groups with a correct
    rollout ("group"). Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208, eq. 8: reverse KL to a teacher on the
    policy's own samples beside GRPO, by k2 (whose gradient is the KL's), beta annealed from 5e-3 to 1e-3,
    reward-guided masks. Deviates: the form of the annealing (linear, over `anneal` steps of the phase) is
    ours; the value in the log is k3's, which is unbiased. Edge: `anneal` 0 keeps `start`.
    """

    clamp_log: float = 0.0
    start: float = 5e-3
    end: float = 1e-3
    anneal: int = 100
    mask: Literal["none", "response", "group"] = "none"

    def weight(self) -> float:
        """beta_t of the current step; `start` before the plug-in is set up."""
        step = self.run.phase_step if self.is_set_up else 0
        return (
            max(self.end, self.start - (self.start - self.end) * step / self.anneal)
            if self.anneal
            else self.start
        )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        loss_BT, metrics = super().__call__(x)
        correct_B = correct_rollouts(x)
        masks = {
            "none": torch.ones_like(correct_B),
            "response": 1 - correct_B,
            "group": (group_mean(correct_B, x.group_B) == 0).to(correct_B),
        }
        return UnreducedLoss(self.weight() * masks[self.mask][:, None] * loss_BT, metrics)

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        return {**super().metrics(), "teacher/beta": self.weight()}
