"""A bonus for rollouts that lie apart from the others in the reference model's eyes.

What the reference model makes of a whole completion, in a few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from vlrl.methods.core.aux_tensor import Hidden, RefLogp
from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group, TokenBatch

if TYPE_CHECKING:
    from vlrl.context import RunContext


def elliptical(rows: list[list[float]], lam: float, leave_out: bool) -> list[float]:
    """b_i = x_i^T (lam I + sum_j x_j x_j^T)^-1 x_i of rows less their mean; with `leave_out` the sum is over j != i, which is b / (1 - b)."""
    x_GD = torch.tensor(rows, dtype=torch.float64)
    x_GD = x_GD - x_GD.mean(0)
    spread_DD = lam * torch.eye(x_GD.shape[1], dtype=torch.float64) + x_GD.T @ x_GD
    bonus_G = (x_GD * torch.linalg.solve(spread_DD, x_GD.T).T).sum(-1)
    return (bonus_G / (1 - bonus_G) if leave_out else bonus_G).tolist()


@register("repexp")
@dataclass(frozen=True)
class Repexp(ReadsAccuracy, RewardShaping):
    """r_i + beta b_i,  b_i = phi_i^T (lam I + sum_j phi_j phi_j^T)^-1 phi_i over the group's phi (field `representation`) less their mean.

    `kind` "leave_one_out" leaves i out of the sum. Where no rollout of the group is right there is no bonus.
    Paper: Tuyls et al. 2025 (RepExp), arXiv:2510.11686; checked against verl's recipe rep_exp: lam 0.01, beta 0.01, leverage, no normalisation, off
    where none is correct. Left out: covariances that outlive a step. Edge: a single rollout gets 0. Units: leverage is in [0, 1).
    """

    beta: float = 0.01
    lam: float = 0.01
    kind: Literal["leverage", "leave_one_out"] = "leverage"
    slot: str = ""
    least: float = 0.5
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)
    needs = ("repexp.representation",)

    def __post_init__(self) -> None:
        if self.lam <= 0:
            raise ValueError(f"lam={self.lam} must be above 0: without it the spread of few rollouts cannot be inverted")

    def check(self, run: RunContext) -> None:
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        if not any(self.accuracy(rollout) > self.least for rollout in group):
            return group.rewards
        bonus = elliptical([rollout.signals["repexp.representation"][0] for rollout in group], self.lam, self.kind == "leave_one_out")
        return [rollout.reward + self.beta * b for rollout, b in zip(group, bonus, strict=True)]


def sparse_projection(size: int, dim: int, seed: int | tuple[int, ...]) -> Tensor:
    """(H, D): each entry is 0, or with chance 1/sqrt(H) one of +-s, s^2 = sqrt(H) / D: lengths are kept on average (Li et al. 2006)."""
    draw = np.random.default_rng(seed)
    density = 1 / size**0.5
    signs = draw.choice((-1.0, 0.0, 1.0), p=(density / 2, 1 - density, density / 2), size=(size, dim))
    return torch.tensor(signs / (density * dim) ** 0.5)


@register("repexp.representation")
@dataclass(frozen=True, kw_only=True)
class RepexpRepresentation(RefLogp):
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
