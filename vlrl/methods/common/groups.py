"""Statistics of tokens within a rollout, a group or a micro-batch: the largest values, and values scaled to
0..1.

Shape legend: B rollouts (whole groups), T completion tokens.
"""

from __future__ import annotations

import math
from typing import Literal

from vlrl.services.lazy import Tensor, torch

Scope = Literal["rollout", "group", "batch"]


def members(group_B: Tensor, scope: Scope) -> list[Tensor]:
    """The row indices of each member of a scope: each rollout, each group, or the whole micro-batch."""
    rows_B = torch.arange(len(group_B), device=group_B.device)
    if scope == "rollout":
        return list(rows_B[:, None])
    return [rows_B] if scope == "batch" else [rows_B[group_B == g] for g in group_B.unique()]


def top_share(
    values_BT: Tensor, mask_BT: Tensor, group_B: Tensor, share: float, scope: Scope = "group"
) -> Tensor:
    """(B, T) bool: the ceil(share * n) largest of the n values in the mask of each member of `scope`, and
    those equal to the smallest of them."""
    chosen_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
    values_BT = values_BT.detach()
    for rows in members(group_B, scope):
        inside = mask_BT[rows] > 0
        values = values_BT[rows][inside]
        if len(values) and share > 0:
            smallest = values.topk(min(len(values), math.ceil(share * len(values) - 1e-9))).values[-1]
            chosen_BT[rows] = inside & (values_BT[rows] >= smallest)
    return chosen_BT


def above_quantile(values_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """(B, T) bool: the values in the mask above the (1 - share) quantile of their rollout, which lies between
    two of its n values, so that ceil(share (n - 1)) of n are where none are equal."""
    inside_BT = mask_BT > 0
    values_BT = values_BT.detach().float()
    bound_B1 = values_BT.where(inside_BT, torch.nan).nanquantile(1 - share, dim=-1, keepdim=True)
    return inside_BT & (values_BT > bound_B1)


def normalised(values_BT: Tensor, mask_BT: Tensor, group_B: Tensor, scope: Scope = "rollout") -> Tensor:
    """(B, T): values in the mask scaled to 0..1 within each member of `scope` (0.5 where all are equal); no
    gradient."""
    out_BT = torch.full_like(values_BT, 0.5).detach()
    values_BT = values_BT.detach()
    for rows in members(group_B, scope):
        inside = mask_BT[rows] > 0
        values = values_BT[rows][inside]
        if len(values) and values.max() > values.min():
            out_BT[rows] = torch.where(
                inside, (values_BT[rows] - values.min()) / (values.max() - values.min()), out_BT[rows]
            )
    return out_BT
