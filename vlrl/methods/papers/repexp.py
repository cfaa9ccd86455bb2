"""RepExp: representation-based exploration, an elliptical bonus for rollouts that the reference model
represents unlike the others of their group.

    repexp.representation   aux tensor: the reference model's mean hidden state of a completion, projected
    repexp                  reward shaping: adds the bonus

Paper: Tuyls et al. 2025 (RepExp), arXiv:2510.11686; checked against verl's recipe rep_exp
(elliptical_reward_model_worker.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.methods.core.aux_tensor import Hidden, RefLogp
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, TokenBatch


@register("repexp.representation")
@dataclass(frozen=True, kw_only=True)
class RepexpRepresentation(RefLogp):
    """RepExp's representation: phi(y) = P^T mean_t h_t, the reference model's last hidden states of a
    completion, averaged and projected.

    The reference is that of the aux tensor `ref_logp`. P is a sparse random projection to `dim` numbers, a
    new one in every step, the same on all ranks.
    Paper: Tuyls et al. 2025 (RepExp), arXiv:2510.11686; checked against elliptical_reward_model_worker.py of
    verl's recipe rep_exp (dim 32, or 128 for long answers). Deviates: h_t is the state that predicts token t;
    the release takes the state that has read it. Shapes: (B, 1, dim), float64: one row per completion.
    """

    dim: int = 32

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"dim={self.dim} must be at least 1")

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad(), policy.reference() as reference:
            hidden_BTH = reference.forward(batch, [Hidden()])["hidden"].double()
        mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(hidden_BTH.device)
        mean_BH = (hidden_BTH * mask_BT[..., None]).sum(1) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
        projection_HD = sparse_projection(mean_BH.shape[-1], self.dim, (self.run.seed, self.run.step))
        return (mean_BH @ projection_HD.to(mean_BH))[:, None]


def sparse_projection(size: int, dim: int, seed: int | tuple[int, ...]) -> Tensor:
    """(H, D): each entry is 0, or with chance 1/sqrt(H) one of +-s, s^2 = sqrt(H) / D: lengths are kept on
    average (Li et al. 2006)."""
    draw = np.random.default_rng(seed)
    density = 1 / size**0.5
    signs = draw.choice((-1.0, 0.0, 1.0), p=(density / 2, 1 - density, density / 2), size=(size, dim))
    return torch.tensor(signs / (density * dim) ** 0.5)


@register("repexp")
@dataclass(frozen=True)
class Repexp(RewardShaping):
    """RepExp's bonus: r_i + beta b_i,  b_i = phi_i^T (lam I + sum_j phi_j phi_j^T)^-1 phi_i.

    phi are the group's representations (aux tensor `repexp.representation`) minus their mean. `form`
    "leave_one_out" leaves i out of the sum. Where no rollout of the group is correct there is no bonus.
    Paper: Tuyls et al. 2025 (RepExp), arXiv:2510.11686; checked against verl's recipe rep_exp: lam 0.01, beta
    0.01, leverage, no normalisation, off where none is correct. Left out: covariances that outlive a step.
    Edge: a single rollout gets 0. Units: leverage is in [0, 1).
    """

    beta: float = 0.01
    lam: float = 0.01
    form: Literal["leverage", "leave_one_out"] = "leverage"
    needs = ("repexp.representation",)

    def __post_init__(self) -> None:
        if self.lam <= 0:
            raise ValueError(
                f"lam={self.lam} must be above 0: without it the covariance of few rollouts cannot be "
                "inverted"
            )

    def __call__(self, group: Group) -> list[float]:
        if not any(rollout.correct for rollout in group):
            return group.rewards
        bonus = elliptical(
            [rollout.signals["repexp.representation"][0] for rollout in group],
            self.lam,
            self.form == "leave_one_out",
        )
        return [rollout.reward + self.beta * b for rollout, b in zip(group, bonus, strict=True)]


def elliptical(rows: Sequence[Sequence[float]], lam: float, leave_out: bool) -> list[float]:
    """b_i = x_i^T (lam I + sum_j x_j x_j^T)^-1 x_i of rows minus their mean; with `leave_out` the sum is over
    j != i, which is b / (1 - b)."""
    x_GD = torch.tensor(rows, dtype=torch.float64)
    x_GD = x_GD - x_GD.mean(0)
    covariance_DD = lam * torch.eye(x_GD.shape[1], dtype=torch.float64) + x_GD.T @ x_GD
    bonus_G = (x_GD * torch.linalg.solve(covariance_DD, x_GD.T).T).sum(-1)
    return (bonus_G / (1 - bonus_G) if leave_out else bonus_G).tolist()
