"""Plug points of the loss. Shapes: B rollouts, T completion tokens, N scored tokens, V vocabulary, K numbers per token."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vlrl.stages.base import Stage
from vlrl.types import LossInputs, PerToken, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.policy import Policy


class Field(Stage):
    """An extra tensor, computed only if some plug-in `needs` its name.

    A field that reads the policy's own distribution overrides `from_logits` and sets `in_forward`: it is evaluated chunk by chunk inside the training
    forward. Any other field overrides `__call__`, which runs without gradient before it.
    """

    kind: ClassVar[str] = "field"
    home: ClassVar[str] = "vlrl.methods.field"
    in_forward: ClassVar[bool] = False
    reads_hidden: ClassVar[bool] = False  # with in_forward: `from_hidden` instead of `from_logits`
    at_start: ClassVar[bool] = False  # of the policy that the step starts from: computed before its first update

    def __call__(self, policy: Policy, batch: TokenBatch) -> Tensor:
        """(B, T), or (B, T, K)."""
        raise NotImplementedError(f"field {self.name!r} is computed in the forward")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        """(N,) or (N, K) from temperature-scaled float32 logits of N completion positions."""
        raise NotImplementedError(f"field {self.name!r} is computed in a pass of its own")

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        """Like `from_logits`, for a field that sets `reads_hidden`: from the last hidden states that predict the N tokens."""
        raise NotImplementedError(f"field {self.name!r} reads no hidden states")


class Surrogate(Stage):
    """The policy-gradient loss, unreduced."""

    kind: ClassVar[str] = "surrogate"
    home: ClassVar[str] = "vlrl.methods.surrogate"
    zero_without_advantage: ClassVar[bool] = True  # False: has a gradient even where every advantage of a group is 0

    @abstractmethod
    def __call__(self, x: LossInputs) -> PerToken: ...


class Weight(Stage):
    """A factor on the surrogate, (B, T) or (B, 1), without gradient."""

    kind: ClassVar[str] = "weight"
    home: ClassVar[str] = "vlrl.methods.weight"

    @abstractmethod
    def __call__(self, x: LossInputs) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Term(Stage):
    """A further loss, added with a coefficient."""

    kind: ClassVar[str] = "term"
    home: ClassVar[str] = "vlrl.methods.term"
    coef: float = 1.0

    @abstractmethod
    def __call__(self, x: LossInputs) -> PerToken: ...


@dataclass(frozen=True)
class Denominators:
    """Totals of one optimizer step over all micro-batches and ranks, so that any split gives the same gradient."""

    tokens: float
    sequences: float
    groups: float


class Reduce(Stage):
    """Tokens to a scalar: sum(weights * loss). The weights come from lengths and the totals of the whole step, never of a micro-batch."""

    kind: ClassVar[str] = "reduce"
    home: ClassVar[str] = "vlrl.methods.reduce"

    @abstractmethod
    def weights(self, x: LossInputs, totals: Denominators) -> Tensor:
        """(B, T), or (B, 1)."""
