"""No policy gradient on tokens that were given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Weight
from vlrl.types import LossInputs


def own(x: LossInputs) -> Tensor:
    """(B, T) whether a token is behind the first `rollout.info["given"]` ones."""
    given_B1 = torch.tensor([[rollout.info.get("given", 0)] for rollout in x.batch.rollouts], device=x.mask_BT.device)
    return torch.arange(x.mask_BT.shape[1], device=x.mask_BT.device) >= given_B1


@register("own_tokens")
@dataclass(frozen=True)
class OwnTokens(Weight):
    """w_t = 0 for the first `info["given"]` tokens of a rollout, which a demonstration began, else 1: terms may still learn them.

    Paper: Li et al. 2025 (SEELE), arXiv:2509.06923, sec. 4.2: the policy gradient is of generated tokens alone. Deviates: given tokens still count
    in what a reduction divides by. Edge: rollouts without given tokens have weight 1. Shape: (B, T).
    """

    def __call__(self, x: LossInputs) -> Tensor:
        return own(x).to(x.mask_BT)
