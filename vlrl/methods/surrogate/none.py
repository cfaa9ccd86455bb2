"""No policy gradient: for phases that learn from terms alone."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("none")
@dataclass(frozen=True)
class NoSurrogate(Surrogate):
    """L = 0, whatever the advantages.

    Paper: vlrl original (supervised phases: the loss is the terms').
    """

    def __call__(self, x: LossInputs) -> PerToken:
        return PerToken(x.logp_BT * 0.0, {})
