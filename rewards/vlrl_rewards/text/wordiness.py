"""A penalty for responses that are long or say the same again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout

_WINDOWS = (3, 5, 7, 9)  # words of a phrase
_GRAM = 5  # words of the n-grams whose variety is measured
_GRAMS = 500  # of them are looked at


@register("wordiness")
@dataclass(frozen=True, kw_only=True)
class Wordiness(Reward):
    """Time-R1's penalty for long and for repetitive responses.

        r = -max(L, R),  R = max(R_word, R_phrase, R_variety)
        L = `long` min(1, (n - `words`) / `span`)         above `words` words
        R_word = 0.1 min(5, k - 4)                        above 50 words: one word k >= 5 times in a row
        R_phrase = 0.15 c                                 above 100: w words c >= 2 times in the next 3 w
        R_variety = max(0, 0.5 - share of distinct ones)  above 200: the first 500 sequences of five

    n: words, parted by white space; w: 3, 5, 7 or 9. Paper: Time-R1, arXiv:2505.13508 (length and repetition
    penalty, with the numbers of its release). Edge: 50 words or fewer: 0. Range [-0.5, 0].
    """

    reads_answer: ClassVar[bool] = False
    words: int = 900
    span: int = 124
    long: float = 0.3

    def __post_init__(self) -> None:
        if self.words < 0 or self.long < 0 or self.span < 1:
            raise ValueError(
                f"words={self.words} and long={self.long} must be 0 or more, span={self.span} at least 1"
            )

    def __call__(self, rollout: Rollout) -> float:
        words = rollout.text.split()
        excess = self.long * min(1.0, max(0, len(words) - self.words) / self.span)
        return 0.0 - max(excess, repeated_word(words), repeated_phrase(words), sameness(words))


def repeated_word(words: Sequence[str]) -> float:
    """R_word: one word again and again."""
    most = max((len(list(run)) for _, run in groupby(words)), default=0) if len(words) > 50 else 0
    return 0.1 * min(5, most - 4) if most >= 5 else 0.0


def repeated_phrase(words: Sequence[str]) -> float:
    """R_phrase: a phrase that follows itself."""
    if len(words) <= 100:
        return 0.0
    most = 0
    for width in _WINDOWS:
        for start in range(len(words) - 3 * width):
            if (
                words[start] not in words[start + width : start + 2 * width + 1]
            ):  # cannot occur twice in what follows
                continue
            phrase, behind = (
                " ".join(words[start : start + width]),
                " ".join(words[start + width : start + 4 * width]),
            )
            most = max(most, behind.count(phrase))
    return 0.15 * most if most >= 2 else 0.0


def sameness(words: Sequence[str]) -> float:
    """R_variety: how far the share of distinct five-word sequences is below a half."""
    grams = (
        [tuple(words[i : i + _GRAM]) for i in range(min(len(words) - _GRAM, _GRAMS))]
        if len(words) > 200
        else []
    )
    return max(0.0, 0.5 - len(set(grams)) / len(grams)) if grams else 0.0
