"""The direction in which likely tokens become less likely.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


def complementary(logp_BT: Tensor, mask_BT: Tensor, eps: float) -> Tensor:
    """(B,): mean_t -log(1 - min(pi_t, 1 - eps)), which is large for what is likely."""
    p_BT = logp_BT.exp().clamp(max=1 - eps)
    return torch.where(mask_BT, -torch.log1p(-p_BT), 0.0).sum(-1) / mask_BT.sum(-1).clamp(min=1)


def gradient(groups: Sequence[Group], weights: Sequence[Tensor], run: Run, eps: float) -> list[Tensor]:
    """d L / d weights, L the mean of `complementary` over the rollouts."""
    total = [torch.zeros_like(p) for p in weights]
    number = sum(map(len, groups))
    for part in run.micros(groups):
        batch = run.batch(part)
        with torch.enable_grad():
            logp_BT = run.policy.forward(batch)["logp"]
            mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(logp_BT.device)
            loss = complementary(logp_BT, mask_BT, eps).sum() / number
        for sum_, grad in zip(total, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
            if grad is not None:
                sum_ += grad
    return total
