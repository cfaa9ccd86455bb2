"""SSRL: self-search, where the policy writes its own search results; information masking leaves them out of
the loss.

`ssrl` is a rollout strategy. Paper: Fan et al. 2025 (SSRL), arXiv:2508.10874; released code: TsinghuaC3I/SSRL
at 3009f21, verl/trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.registry import register
from vlrl.types import Group, Prompt


@register("ssrl")
@dataclass(frozen=True)
class Ssrl(Independent):
    """SSRL's rollouts: independent samples, not trained on the tokens that begin in `<tag>...</tag>`, tags
    included.

    They are in no loss, no KL and no mean over tokens; their lengths count. Paper: Fan et al. 2025 (SSRL),
    arXiv:2508.10874 (information mask); released code: create_information_loss_mask, which becomes the loss
    mask (ray_trainer.py:1046-1047, dp_actor.py). Its pattern does not match across lines: information of
    several lines is trained on; `across_lines` leaves it out too. Edge: an unclosed tag leaves nothing out.
    """

    tag: str = "information"
    across_lines: bool = False

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        for rollout in (rollout for group in groups for rollout in group):
            keep = outside(rollout.ids, self.tag, run.policy.tokenizer.decode, self.across_lines)
            if not all(keep):
                rollout.leave_out(keep)
        return groups


def outside(
    ids: Sequence[int], tag: str, decode: Callable[[Sequence[int]], str], across_lines: bool = False
) -> list[bool]:
    """For each token whether its first character is outside of the tags."""
    pieces = [decode([token]) for token in ids]
    tagged = spans("".join(pieces), tag, across_lines)
    keep, at = [], 0
    for piece in pieces:
        keep.append(not (piece and any(a <= at < b for a, b in tagged)))
        at += len(piece)
    return keep


def spans(text: str, tag: str, across_lines: bool = False) -> list[tuple[int, int]]:
    """[start, end) of the characters from each `<tag>` to its `</tag>`, both included; an unclosed tag has
    none, nor has one whose text has a line break, but for `across_lines`."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found: list[tuple[int, int]] = []
    at = 0
    while (start := text.find(opening, at)) >= 0:
        end = text.find(closing, start)
        line_end = text.find("\n", start)
        if not across_lines and 0 <= line_end < (end if end >= 0 else len(text)):
            at = start + len(opening)
            continue
        if end < 0:
            break
        at = end + len(closing)
        found.append((start, at))
    return found
