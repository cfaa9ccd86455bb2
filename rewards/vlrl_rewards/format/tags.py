"""Format rewards: thinking or not, tags counted, one box."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import boxes_in, visible

_TAG = re.compile(r"</?\s*think\s*>", re.IGNORECASE)


def says_something(text: str) -> bool:
    """Whether there is a letter or a digit in it."""
    return any(char.isalnum() for char in text)


@register("think_format")
@dataclass(frozen=True, kw_only=True)
class ThinkFormat(Reward):
    """r = 1 if the text has the wanted shape, else 0. mode "think": `<think>`, thought, `</think>`, then an answer, each tag once; "no_think":
    no thinking (no tag, or one empty block) before an answer; "row": the mode that `row.meta["think"]` (true or false) asks for.

    Paper: No-Thinking-RL and Thinking-RL, arXiv:2503.16188. Edge: an answer without a letter or digit scores 0, so does an open block.
    """

    mode: Literal["think", "no_think", "row"] = "think"

    def __call__(self, rollout: Rollout) -> float:
        thinks = self.mode == "think" or (self.mode == "row" and bool(rollout.row.meta.get("think", True)))
        text = rollout.text.strip()
        tags = [tag.lower().replace(" ", "") for tag in _TAG.findall(text)]
        head, _, tail = text.partition("</think>")
        if not tags:
            return float(not thinks and says_something(text))
        if tags != ["<think>", "</think>"] or not head.startswith("<think>") or not says_something(tail):
            return 0.0
        return float(says_something(head.removeprefix("<think>")) == thinks)


@register("tag_count")
@dataclass(frozen=True, kw_only=True)
class TagCount(Reward):
    """r = share of the tags (opening and closing counted apart) that stand in the text exactly once, in the wanted order, around something.

    Paper: Open-R1 (tag count reward), after arXiv:2501.12948. Deviations: a tag out of order, or an empty block, does not count: four bare tags
    score 0.
    """

    tags: tuple[str, ...] = ("think", "answer")

    def __call__(self, rollout: Rollout) -> float:
        kept, after = 0, 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start = rollout.text.find(opening, after) if rollout.text.count(opening) == 1 else -1
            end = rollout.text.find(closing, max(start, after)) if rollout.text.count(closing) == 1 else -1
            inside = (
                rollout.text[start + len(opening) : end] if start >= 0 and end >= 0 else rollout.text[start + len(opening) :] if start >= 0 else ""
            )
            if start >= 0 and says_something(inside):
                kept, after = kept + 1, start
            if end >= 0 and says_something(rollout.text[after:end]) and (start < 0 or says_something(inside)):
                kept, after = kept + 1, end
        return kept / (2 * len(self.tags)) if self.tags else 0.0


@register("boxed_format")
@dataclass(frozen=True, kw_only=True)
class BoxedFormat(Reward):
    r"""r = 1 if exactly one `\boxed{...}` with something in it stands outside the thinking, else 0.

    Paper: SimpleRL-Zoo, arXiv:2503.18892 (boxed answers). Edge: `\boxed{}` and `\boxed{...}` without a letter or digit score 0.
    """

    def __call__(self, rollout: Rollout) -> float:
        text = visible(rollout.text)
        found = boxes_in(text)
        return float(len(found) == 1 and says_something(text[found[0][2] : found[0][3]]))
