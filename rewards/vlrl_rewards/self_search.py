"""The form of a policy that asks and answers itself before it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout

_MARK = re.compile(r"<(/?)(think|search|information|answer)>")
_ORDER = re.compile(r"(?:(?:think )?search information )*think answer ")


@register("search_format")
@dataclass(frozen=True, kw_only=True)
class SearchFormat(Reward):
    """r = 1 if the text is `<think> <search> <information>` blocks, any number of times, then `<think>` and `<answer>`, each closed and not empty.

    Between blocks only white space may stand; a search may come without a thought before it. At most `most` searches, else 0.
    Paper: SSRL, arXiv:2508.10874 (format reward of the structured self-search); the exact rule is ours. Edge: no search at all is fine, as in the
    paper's easy questions. No gold answer is read. Range: 0 or 1.
    """

    reads_answer: ClassVar[bool] = False
    most: int = 10

    def __call__(self, rollout: Rollout) -> float:
        text = rollout.text.strip()[:200_000]
        marks = list(_MARK.finditer(text))
        pairs = list(zip(marks[::2], marks[1::2], strict=False))
        if not marks or len(marks) % 2 or any(a[1] or not b[1] or a[2] != b[2] for a, b in pairs):
            return 0.0
        blocks = [text[a.end() : b.start()] for a, b in pairs]
        between = [text[b.end() : a.start()] for (_, b), (a, _) in zip(pairs, pairs[1:], strict=False)]
        outside = [text[: marks[0].start()], *between, text[marks[-1].end() :]]
        kinds = [a[2] for a, _ in pairs]
        well_made = all(any(char.isalnum() for char in block) for block in blocks) and not any(part.strip() for part in outside)
        return float(well_made and kinds.count("search") <= self.most and _ORDER.fullmatch(" ".join(kinds) + " ") is not None)
