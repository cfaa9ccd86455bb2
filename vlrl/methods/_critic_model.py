"""A whole model that values tokens: a copy of the policy's with a scalar head, trained beside it.

Shape legend: B rollouts, T completion tokens, N scored tokens, H hidden size.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vlrl.stages import Field

if TYPE_CHECKING:
    from vlrl.run import Run
    from vlrl.types import TokenBatch


class Scalar(Field):
    """w . h_t + b, with gradient into the hidden states."""

    name = "scalar"
    in_forward = True
    reads_hidden = True

    def __init__(self, head: nn.Linear) -> None:
        self.head = head

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.head(hidden_NH.float())[:, 0]


class CriticModel(nn.Module):
    """V(s_t) = w . h_t + b of a model that begins as a copy of the policy's; 0 everywhere at first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(True)
        size = model.get_output_embeddings().weight.shape[-1]  # type: ignore[operator,union-attr]
        self.head = nn.Linear(size, 1).to(next(model.parameters()).device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, policy: Any, batch: TokenBatch) -> Tensor:
        """(B, T), zero outside the loss mask; honours the autograd mode. Prompts are laid out as for the policy."""
        other = copy.copy(policy)  # caches and counters are shared
        other.net, other.wrapped = type(policy.net)(self.model, policy.family), None
        return other.forward(batch, [Scalar(self.head)])["scalar"]


def critic_model(run: Run) -> CriticModel:
    """The run's, made when it is first asked for."""
    if "critic_model" not in run.extras:
        run.extras["critic_model"] = CriticModel(run.policy.model)
    return run.extras["critic_model"]
