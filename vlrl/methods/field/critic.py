"""A small head on the policy's hidden states: a critic, or a reward model of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vlrl.methods._critic import critic_of
from vlrl.registry import register
from vlrl.stages import Field

if TYPE_CHECKING:
    from vlrl.run import Run


@register("value")
@dataclass(frozen=True, kw_only=True)
class Value(Field):
    """V(s_t) of the head in `run.extras["critic"]`, in units of reward (a logit where the head learns outcomes).

    Paper: PPO's critic (arXiv:1707.06347); OREAL's token reward model (arXiv:2502.06781).  Deviates: a head on the policy's own states instead of
    a second model (that is field `model_value`).
    Shapes: (N, H) to (N,).  Callback `critic` trains it.
    """

    in_forward = True
    reads_hidden = True
    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        self.state["head"] = critic_of(run)

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.state["head"](hidden_NH)


@register("token_score")
@dataclass(frozen=True, kw_only=True)
class TokenScore(Value):
    """The head's logits, without gradient: their mean over a rollout learns whether it is right.

    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3.  Shapes: (N, H) to (N,).
    """

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.state["head"](hidden_NH).detach()
