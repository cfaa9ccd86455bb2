"""What a whole model makes of each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.methods._critic_model import critic_model
from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import TokenBatch

if TYPE_CHECKING:
    from vlrl.run import Run


@register("model_value")
@dataclass(frozen=True, kw_only=True)
class ModelValue(Field):
    """V(s_t) of the model that callback `critic_model` trains, without gradient: reward to come, or a logit where it learns outcomes.

    Paper: PPO's critic (arXiv:1707.06347); Open-Reasoner-Zero (arXiv:2503.24290); OREAL's token reward model (arXiv:2502.06781).
    Edge: zero outside the loss mask.  Shapes: (B, T).
    """

    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        self.state["critic"] = critic_model(run)

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad():
            return self.state["critic"].values(policy, batch)
