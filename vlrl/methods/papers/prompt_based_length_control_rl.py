"""Prompt-based length control: prompts that ask for an answer of a given length, and a rule reward
(`length_range`) for keeping to it.

`prompt_based_length_control_rl` is a prompt template.

Paper: Jie et al. 2023, arXiv:2308.12030 (prompts with length instructions; the four kinds). Deviates: the
wording is ours, and the bounds come with the prompt where the paper extracts them from free text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Prompt, Row

INSTRUCTIONS = {
    "less": "Answer with at most {high} tokens.",
    "more": "Answer with at least {low} tokens.",
    "equal": "Answer with exactly {low} tokens.",
    "between": "Answer with {low} to {high} tokens.",
}


@register("prompt_based_length_control_rl")
@dataclass(frozen=True)
class PromptBasedLengthControlRl(Chat):
    """The prompt of `chat` with a length instruction: less than, more than, exactly, or between lengths of
    `shortest` to `longest` tokens.

    `row.meta["length"]` gets the bounds [low, high] for the reward `length_range`; a row that has bounds
    already gets the instruction for those. Kind and lengths are drawn by the row's id, so a row always has
    the same ones.
    Paper: Jie et al. 2023, arXiv:2308.12030. Edge: "more" has no upper bound but `max_length`. Units: tokens.
    """

    shortest: int = 4
    longest: int = 64
    max_length: int = 100_000
    kinds: tuple[str, ...] = tuple(INSTRUCTIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.kinds) - set(INSTRUCTIONS))
        if unknown or not self.kinds:
            raise ConfigError(
                f"prompt_template.kinds: {', '.join(unknown) or 'empty'}; known: {', '.join(INSTRUCTIONS)}"
            )
        if not 0 < self.shortest <= self.longest <= self.max_length:
            bounds = f"{self.shortest}, {self.longest} and {self.max_length}"
            raise ConfigError(f"prompt_template: need 0 < shortest <= longest <= max_length, got {bounds}")

    def __call__(self, row: Row) -> Prompt:
        kind, low, high = self.bounds(row)
        instruction = INSTRUCTIONS[kind].format(low=low, high=high)
        meta: dict[str, Any] = {**row.meta, "length": [low, high]}
        return super().__call__(
            replace(
                row, question=f"{row.question}\n{instruction}" if row.question else instruction, meta=meta
            )
        )

    def bounds(self, row: Row) -> tuple[str, int, int]:
        """(kind, low, high) of a row."""
        if "length" in row.meta:
            low, high = (int(value) for value in row.meta["length"])
            return (
                "equal"
                if low == high
                else "more"
                if high >= self.max_length
                else "less"
                if low <= 0
                else "between",
                low,
                high,
            )
        draw = random.Random(f"length/{row.id}")
        kind = draw.choice(self.kinds)
        a, b = sorted(draw.randint(self.shortest, self.longest) for _ in range(2))
        low, high = {"less": (0, b), "more": (a, self.max_length), "equal": (a, a), "between": (a, b)}[kind]
        return kind, low, high
