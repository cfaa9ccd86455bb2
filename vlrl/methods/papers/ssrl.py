"""Tokens that the policy writes for itself to read are not trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.registry import register
from vlrl.stages import TokenWeight
from vlrl.types import LossInputs, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def spans(text: str, tag: str) -> list[tuple[int, int]]:
    """[start, end) of what stands between `<tag>` and `</tag>`; a last one that is not closed runs to the end."""
    opening, closing, found, at = f"<{tag}>", f"</{tag}>", [], 0
    while (start := text.find(opening, at)) >= 0:
        end = text.find(closing, start)
        end = len(text) if end < 0 else end
        found.append((start + len(opening), end))
        at = end
    return found


@register("ssrl")
@dataclass(frozen=True)
class Ssrl(TokenWeight):
    """w_t = 0 for tokens that lie wholly inside `<tag> </tag>`, else 1; the tags themselves are trained.

    Paper: Fan et al. 2025 (SSRL), arXiv:2508.10874 (information mask).  Deviates: known to us from the paper's description only. Shapes: (B, T).
    Edge: a rollout without the tag has weight 1 everywhere.
    """

    tag: str = "information"
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.held["tokenizer"] = run.policy.tokenizer

    def __call__(self, x: LossInputs) -> Tensor:
        weight_BT = torch.ones_like(x.mask_BT)
        for b, rollout in enumerate(x.batch.rollouts if self.held else ()):
            for t in self.inside(rollout):
                weight_BT[b, t] = 0.0
        return weight_BT

    def inside(self, rollout: Rollout) -> list[int]:
        """The places of the tokens inside."""
        pieces = [self.held["tokenizer"].decode([token]) for token in rollout.ids]
        found = spans("".join(pieces), self.tag)
        places, at = [], 0
        for t, piece in enumerate(pieces):
            if piece and any(start <= at and at + len(piece) <= end for start, end in found):
                places.append(t)
            at += len(piece)
        return places
