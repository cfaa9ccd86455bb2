"""Prompts that say how long the answer shall be."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.core.prompt_template import Chat
from vlrl.registry import ConfigError, register
from vlrl.types import Prompt, Row

ASKED = {
    "less": "Answer with at most {high} tokens.",
    "more": "Answer with at least {low} tokens.",
    "equal": "Answer with exactly {low} tokens.",
    "between": "Answer with {low} to {high} tokens.",
}


@register("prompt_based_length_control_rl")
@dataclass(frozen=True)
class PromptBasedLengthControlRl(Chat):
    """The prompt of `chat` and an instruction about length: less than, more than, exactly or between lengths of `shortest` to `longest` tokens.

    `row.meta["length"]` gets the bounds [low, high] for the reward `length_range`; a row that has them is asked for those. Kind and lengths are
    drawn by the row's id, so that they stay with the row.
    Paper: Jie et al. 2023, arXiv:2308.12030 (prompts with length instructions; the four kinds). Deviates: the wording is ours, and the bounds come
    with the prompt where the paper extracts them from free text. Edge: more than has no upper bound but `most`. Units: tokens.
    """

    shortest: int = 4
    longest: int = 64
    most: int = 100_000
    kinds: tuple[str, ...] = tuple(ASKED)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.kinds) - set(ASKED))
        if unknown or not self.kinds:
            raise ConfigError(f"scaffold.kinds: {', '.join(unknown) or 'empty'}; known: {', '.join(ASKED)}")
        if not 0 < self.shortest <= self.longest <= self.most:
            raise ConfigError(f"prompt_template: need 0 < shortest <= longest <= most, got {self.shortest}, {self.longest} and {self.most}")

    def __call__(self, row: Row) -> Prompt:
        kind, low, high = self.bounds(row)
        asked = ASKED[kind].format(low=low, high=high)
        meta: dict[str, Any] = {**row.meta, "length": [low, high]}
        return super().__call__(replace(row, question=f"{row.question}\n{asked}" if row.question else asked, meta=meta))

    def bounds(self, row: Row) -> tuple[str, int, int]:
        """(kind, low, high) of a row."""
        if "length" in row.meta:
            low, high = (int(value) for value in row.meta["length"])
            return "equal" if low == high else "more" if high >= self.most else "less" if low <= 0 else "between", low, high
        draw = random.Random(f"length/{row.id}")
        kind = draw.choice(self.kinds)
        a, b = sorted(draw.randint(self.shortest, self.longest) for _ in range(2))
        return kind, *{"less": (0, b), "more": (a, self.most), "equal": (a, a), "between": (a, b)}[kind]
