"""What the reference model makes of a whole completion, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.methods.field.hidden import Hidden
from vlrl.methods.field.ref_logp import RefLogp
from vlrl.registry import register
from vlrl.types import TokenBatch


def sparse_projection(size: int, dim: int, seed: int | tuple[int, ...]) -> Tensor:
    """(H, D): each entry is 0, or with chance 1/sqrt(H) one of +-s, s^2 = sqrt(H) / D: lengths are kept on average (Li et al. 2006)."""
    draw = np.random.default_rng(seed)
    density = 1 / size**0.5
    signs = draw.choice((-1.0, 0.0, 1.0), p=(density / 2, 1 - density, density / 2), size=(size, dim))
    return torch.tensor(signs / (density * dim) ** 0.5)


@register("representation")
@dataclass(frozen=True, kw_only=True)
class Representation(RefLogp):
    """phi(y) = P^T mean_t h_t: the reference model's last hidden states of a completion, averaged and projected to `dim` numbers.

    The reference is that of field `ref_logp`. P is sparse and random, another one in every step, the same on all ranks.
    Paper: Tuyls et al. 2025 (RepExp), arXiv:2510.11686; checked against elliptical_reward_model_worker.py of verl's recipe rep_exp (dim 32, or 128
    for long answers). Deviates: h_t is the state that predicts token t; the release takes the state that has read it.
    Shapes: (B, 1, dim), float64: one row per completion.
    """

    dim: int = 32

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"dim={self.dim} must be at least 1")

    def setup(self, run: Any) -> None:
        super().setup(run)
        self.held["run"] = run

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad(), policy.reference() as reference:
            hidden_BTH = reference.forward(batch, [Hidden()])["hidden"].double()
        mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(hidden_BTH.device)
        mean_BH = (hidden_BTH * mask_BT[..., None]).sum(1) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
        run = self.held["run"]
        return (mean_BH @ sparse_projection(mean_BH.shape[-1], self.dim, (run.seed, run.step)).to(mean_BH))[:, None]
