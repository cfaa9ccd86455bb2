"""A bonus for rollouts that lie apart from the others in the reference model's eyes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from vlrl.methods.shape.t_grpo import ReadsAccuracy
from vlrl.registry import register
from vlrl.stages import Shape
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


def elliptical(rows: list[list[float]], lam: float, leave_out: bool) -> list[float]:
    """b_i = x_i^T (lam I + sum_j x_j x_j^T)^-1 x_i of rows less their mean; with `leave_out` the sum is over j != i, which is b / (1 - b)."""
    x_GD = torch.tensor(rows, dtype=torch.float64)
    x_GD = x_GD - x_GD.mean(0)
    spread_DD = lam * torch.eye(x_GD.shape[1], dtype=torch.float64) + x_GD.T @ x_GD
    bonus_G = (x_GD * torch.linalg.solve(spread_DD, x_GD.T).T).sum(-1)
    return (bonus_G / (1 - bonus_G) if leave_out else bonus_G).tolist()


@register("repexp")
@dataclass(frozen=True)
class EllipticalBonus(ReadsAccuracy, Shape):
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
    needs = ("representation",)

    def __post_init__(self) -> None:
        if self.lam <= 0:
            raise ValueError(f"lam={self.lam} must be above 0: without it the spread of few rollouts cannot be inverted")

    def check(self, run: Run) -> None:
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        if not any(self.accuracy(rollout) > self.least for rollout in group):
            return group.rewards
        bonus = elliptical([rollout.signals["representation"][0] for rollout in group], self.lam, self.kind == "leave_one_out")
        return [rollout.reward + self.beta * b for rollout, b in zip(group, bonus, strict=True)]
