"""SSRL: self-search, where the policy writes its own search results; information masking leaves them out of
the loss.

`ssrl` is a token weight. Paper: Fan et al. 2025 (SSRL), arXiv:2508.10874; released code: TsinghuaC3I/SSRL at
3009f21, verl/trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, Rollout


@register("ssrl")
@dataclass(frozen=True)
class Ssrl(TokenWeight):
    """SSRL's information mask: w_t = 0 for tokens that lie wholly in `<tag>...</tag>`, the tags included,
    else 1.

    Paper: Fan et al. 2025 (SSRL), arXiv:2508.10874 (information mask); released code:
    create_information_loss_mask. Deviates: its pattern does not match across lines; here information of
    several lines is masked too. Shapes: (B, T). Edge: an unclosed tag masks nothing; a rollout without the
    tag has weight 1 everywhere; before `setup`, without a tokenizer, all weights are 1.
    """

    tag: str = "information"

    def __call__(self, x: LossInputs) -> Tensor:
        weight_BT = torch.ones_like(x.mask_BT)
        for b, rollout in enumerate(x.batch.rollouts if self.is_set_up else ()):
            for t in self.inside(rollout):
                weight_BT[b, t] = 0.0
        return weight_BT

    def inside(self, rollout: Rollout) -> list[int]:
        """The positions of the tokens inside the tags."""
        pieces = [self.run.policy.tokenizer.decode([token]) for token in rollout.ids]
        tagged = spans("".join(pieces), self.tag)
        positions, at = [], 0
        for t, piece in enumerate(pieces):
            if piece and any(start <= at and at + len(piece) <= end for start, end in tagged):
                positions.append(t)
            at += len(piece)
        return positions


def spans(text: str, tag: str) -> list[tuple[int, int]]:
    """[start, end) of the characters from each `<tag>` to its `</tag>`, both included; an unclosed tag has
    none."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found: list[tuple[int, int]] = []
    at = 0
    while (start := text.find(opening, at)) >= 0:
        end = text.find(closing, start)
        if end < 0:
            break
        at = end + len(closing)
        found.append((start, at))
    return found
