"""No policy gradient: for phases that learn from terms alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run


@register("none")
@dataclass(frozen=True)
class NoSurrogate(Surrogate):
    """L = 0, whatever the advantages.

    Paper: vlrl original (supervised phases: the loss is the terms').
    """

    def check(self, run: Run) -> None:
        if not any(term.coef for term in run.objective.terms.values()):
            raise ConfigError("surrogate none without a term leaves nothing to learn from; add terms: {nll: {name: nll}}, or use ppo_clip")

    def __call__(self, x: LossInputs) -> PerToken:
        return PerToken(x.logp_BT * 0.0, {})
