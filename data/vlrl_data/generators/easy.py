"""Small questions in plain English whose answer is a whole number: sums, stories, letters. Made for
pretrained chat models that a CPU trains."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
THINGS = ("apples", "pears", "plums", "limes", "books", "coins")
COUNTS = (1, 2, 3)  # of a letter in a word
# Words of four to nine letters, many of them with a letter that occurs twice or three times.
_WORDS = """
added apple assist attitude balloon banana barrier battle beehive between bottle breeze bubble butter cabbage
cannon carrier carrot cheese chocolate classes cocoon coffee corridor cotton daddy degree dinner eleven engine
error flower follow forest freeze garden giggle glasses hammer horror igloo illegal kitten ladder letter level
lilac lollipop mirror mummy muffin needle nineteen onion pajama papaya parallel pebble pepper pillow planet
princess puppy puzzle rabbit river rubber running session silver sleeve spinning success summer sunless
syllable tattoo terror tomorrow tunnel turtle window winter yellow
"""  # noqa: E501
WORDS = tuple(_WORDS.split())


class Asked(NamedTuple):
    """A question: `key` decides its split, `answer` is the gold answer; `text` may have {who} and {things},
    which a row draws."""

    key: str
    answer: int
    text: str


def plus(least: int, largest: int) -> Iterator[Asked]:
    """a + b in words; a sum and its mirror are in the same split."""
    for a in range(least, largest + 1):
        for b in range(least, largest + 1):
            yield Asked(f"plus {min(a, b)} {max(a, b)}", a + b, f"What is {a} plus {b}?")


def minus(least: int, largest: int) -> Iterator[Asked]:
    """a - b in words, above 0."""
    for a in range(least + 1, largest + 1):
        for b in range(least, a):
            yield Asked(f"minus {b} {a}", a - b, f"What is {a} minus {b}?")


def three(least: int, largest: int) -> Iterator[Asked]:
    """a + b + c in words; all orders of the terms are in the same split."""
    for a, b, c in itertools.product(range(least, largest + 1), repeat=3):
        yield Asked(f"three {sorted((a, b, c))}", a + b + c, f"What is {a} plus {b} plus {c}?")


def story(least: int, largest: int) -> Iterator[Asked]:
    """Things that are given or taken away; a split has its own pairs of numbers."""
    for a in range(max(least, 2), largest + 1):
        for b in range(max(least, 1), largest + 1):
            key = f"story {min(a, b)} {max(a, b)}"
            yield Asked(
                key,
                a + b,
                f"{{who}} has {a} {{things}} and gets {b} more. How many {{things}} does {{who}} have now?",
            )
            if b < a:
                yield Asked(
                    key,
                    a - b,
                    (
                        f"{{who}} has {a} {{things}} and gives {b} of them away. How many {{things}} does "
                        f"{{who}} have left?"
                    ),
                )


def letters(least: int, largest: int) -> Iterator[Asked]:
    """How often a letter is in a word, one to three times; a split has its own words."""
    for word in WORDS:
        for letter in sorted(set(word)):
            if (count := word.count(letter)) in COUNTS:
                yield Asked(
                    f"letters {word}",
                    count,
                    f"How many times does the letter {letter} appear in the word {word}?",
                )


def spelled(least: int, largest: int) -> Iterator[Asked]:
    """`letters` with a space between the word's letters, so that a tokenizer gives each a token of its
    own."""
    for asked in letters(least, largest):
        word = asked.key.removeprefix("letters ")
        yield asked._replace(text=asked.text.replace(f"the word {word}", " ".join(word)))


KINDS: dict[str, Callable[[int, int], Iterator[Asked]]] = {
    "plus": plus,
    "minus": minus,
    "three": three,
    "story": story,
    "letters": letters,
    "spelled": spelled,
}
LARGEST: dict[str, int] = {
    "three": 29
}  # of a kind's numbers, where all questions up to 199 are too many to list
BALANCED = (
    "letters",
    "spelled",
)  # kinds whose answers come equally often, so that one answer for all is right once in three


@register("gen_easy")
@dataclass(frozen=True, kw_only=True)
class GenEasy(GeneratedSource):
    """Small questions in plain English, of the kinds `ask` in turn; the answer is an int. vlrl original.

        plus, minus   "What is 7 plus 5?", numbers from `least` to `largest`; a difference is at least 1
        three         "What is 2 plus 5 plus 1?", to 29 at most
        story         "Ben has 7 apples and gets 5 more. How many ...", or gives some away; the first from 2
        letters       "How many times does the letter t appear in the word letter?"
        spelled       the same, written "l e t t e r"

    Rows do not repeat before every question of the split was asked. Held out is a fixed fifth of the
    unordered pairs of numbers, or of the words. Reward: `numeric`.
    """

    ask: tuple[str, ...] = ("plus",)
    least: int = 0
    largest: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [kind for kind in self.ask if kind not in KINDS] or not self.ask:
            raise ConfigError(
                f"ask: {unknown if self.ask else 'none'} given. Known: {', '.join(KINDS)}; give at least "
                "one of them."
            )
        if not 0 <= self.least < self.largest <= 199 or self.largest < 4:
            raise ConfigError(
                f"least, largest: {self.least} and {self.largest}; give 0 <= least < largest, and largest "
                "from 4 to 199"
            )
        if wide := [kind for kind in self.ask if self.largest > LARGEST.get(kind, self.largest)]:
            raise ConfigError(
                f"largest: {self.largest} is above {LARGEST[wide[0]]}, the most for {wide[0]!r} in ask"
            )

    def row(self, index: int) -> Row:
        turn, place = index % len(self.ask), index // len(self.ask)
        classes = self._classes[self.ask[turn]]
        asked = classes[place % len(classes)][place // len(classes) % len(classes[place % len(classes)])]
        rng = self.rng(index)
        question = asked.text.format(who=rng.choice(PEOPLE), things=rng.choice(THINGS))
        return Row(
            self.id(index),
            question,
            asked.answer,
            task=self.ask[turn],
            target=tagged_answer(str(asked.answer)),
        )

    @cached_property
    def _classes(self) -> dict[str, list[list[Asked]]]:
        """Per kind the questions of this split in a random order: one list per answer for balanced kinds,
        else one list."""
        found: dict[str, list[list[Asked]]] = {}
        for kind in self.ask:
            own = [asked for asked in KINDS[kind](self.least, self.largest) if self._is_mine(asked.key)]
            random.Random(f"easy {kind} {self.seed} {self.split}").shuffle(own)
            groups = (
                [[asked for asked in own if asked.answer == count] for count in COUNTS]
                if kind in BALANCED
                else [own]
            )
            found[kind] = [group for group in groups if group]
            if not found[kind]:
                raise ConfigError(
                    f"least, largest: no {kind} question from {self.least} to {self.largest} is "
                    f"{self.split}; widen them"
                )
        return found

    def _is_mine(self, key: str) -> bool:
        return (random.Random(f"easy split 2 {key}").random() < 0.2) == (self.split == "heldout")
