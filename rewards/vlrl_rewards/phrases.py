"""Words and phrases of a text, and whether it denies them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vlrl_rewards.parsing import clean
from vlrl_rewards.vocabulary import NOT

MAX_WORDS = 4000
_WORD = re.compile(r"[^\W_]{1,60}(?:['’][^\W_]{1,10})?")


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation; at most 4,000."""
    return _WORD.findall(clean(text[:50_000]).casefold())[:MAX_WORDS]


def phrase_pattern(phrases: Sequence[str]) -> list[tuple[str, ...]]:
    """Phrases as tuples of words. Raises ValueError if one is empty."""
    split = [tuple(words_of(phrase)) for phrase in phrases]
    if not split or not all(split):
        raise ValueError(f"answer: {phrases!r} must be words or phrases, none of them empty")
    return split


def places(words: Sequence[str], phrase: tuple[str, ...]) -> list[int]:
    """Where a phrase stands in a list of words; a plural "s" at its end counts too."""
    size, head = len(phrase), phrase[:-1]
    last = {phrase[-1], phrase[-1] + "s", phrase[-1] + "es"}
    return [i for i in range(len(words) - size + 1) if words[i + size - 1] in last and tuple(words[i : i + size - 1]) == head]


def mentions(words: Sequence[str], phrase: tuple[str, ...]) -> int:
    """How often a phrase stands in a list of words."""
    return len(places(words, phrase))


def asserts(words: Sequence[str], phrase: tuple[str, ...]) -> bool:
    """Whether a phrase is named at least once without "no", "not a", "without", "neither a", "nor any" before it."""
    return any(not _negated(words[max(0, i - 3) : i]) for i in places(words, phrase))


def _negated(before: Sequence[str]) -> bool:
    left = list(before)
    while left and left[-1] in ("a", "an", "the", "any", "single"):
        left.pop()
    return bool(left) and left[-1] in ("no", "without", *NOT.split("|"))
