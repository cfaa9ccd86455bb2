"""Entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken


@register("entropy")
@dataclass(frozen=True, kw_only=True)
class Entropy(Term):
    """L = -H(pi(. | s_t)) in nats: a positive `coef` raises entropy, a negative one lowers it.

    Paper: Mnih et al. 2016, arXiv:1602.01783, sec. 4.
    """

    coef: float = 0.001
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> PerToken:
        return PerToken(-x["entropy"], {"entropy": x["entropy"].detach()})
