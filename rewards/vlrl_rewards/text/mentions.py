"""Words and phrases that a text mentions and does not deny, and rewards for keywords and for named
objects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded, members
from vlrl_rewards.kinds import verifier
from vlrl_rewards.parsing import clean
from vlrl_rewards.text.denials import NOT

MAX_WORDS = 4000
_WORD = re.compile(r"[^\W_]{1,60}(?:['’][^\W_]{1,10})?")


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation; at most 4,000."""
    return _WORD.findall(clean(text[:50_000]).casefold())[:MAX_WORDS]


def phrase_pattern(phrases: Sequence[str]) -> list[tuple[str, ...]]:
    """Phrases as tuples of words. Raises ValueError if one is empty."""
    split = [tuple(words_of(phrase)) for phrase in phrases]
    if not split or not all(split):
        raise GoldError(f"answer: {phrases!r} must be words or phrases, none of them empty")
    return split


def places(words: Sequence[str], phrase: tuple[str, ...]) -> list[int]:
    """The positions of a phrase in a list of words; a plural ending matches too."""
    size, head = len(phrase), phrase[:-1]
    last = {phrase[-1], phrase[-1] + "s", phrase[-1] + "es"}
    return [
        i
        for i in range(len(words) - size + 1)
        if words[i + size - 1] in last and tuple(words[i : i + size - 1]) == head
    ]


def mentions(words: Sequence[str], phrase: tuple[str, ...]) -> int:
    """How often a phrase occurs in a list of words."""
    return len(places(words, phrase))


def asserts(words: Sequence[str], phrase: tuple[str, ...]) -> bool:
    """Whether a phrase occurs at least once without a negation ("no", "not a", "without", "neither a", "nor
    any") before it."""
    return any(not _negated(words[max(0, i - 3) : i]) for i in places(words, phrase))


def _negated(before: Sequence[str]) -> bool:
    left = list(before)
    while left and left[-1] in ("a", "an", "the", "any", "single"):
        left.pop()
    return bool(left) and left[-1] in ("no", "without", *NOT.split("|"))


@verifier("keywords")
@register("keywords")
@dataclass(frozen=True, kw_only=True)
class Keywords(Graded):
    """Keyword coverage of a description.

        r = mentioned / (keywords + spurious) min(1, most / words) min(1, (1 - density) / (1 - dense)),
        density = keyword words / words

    spurious: phrases of `row.meta[vocabulary]` that the description asserts and that are no keywords; 0 for
    rows without a vocabulary. Paper: PeBR-R1, arXiv:2509.13031. Released code: cythu/PeBR-R1,
    examples/reward_function/pebr_1.py, commit 0f332ce (keywords 0.4, length 0.1 as 1 or 512 / length, and a
    CLIP part 0.4 that needs a second model). Deviates: rewards/DEVIATIONS.md. Edge: empty: 0; a keyword that
    occurs twice counts once. Range [0, 1]. Gold: a list of words or phrases.
    """

    refusals = False
    joinable = False
    most: int = 400
    dense: float = 0.7
    vocabulary: str = "vocabulary"

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 < self.dense < 1:
            raise ValueError(
                f"most, dense: must be at least 1 and in (0, 1), got {self.most} and {self.dense}"
            )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = phrase_pattern([str(g) for g in members(gold)])
        answer = self.committed(response)
        words = words_of(answer.text)
        if not words:
            raise Unread("no words", answer)
        counts = [mentions(words, phrase) for phrase in target]
        found = sum(count > 0 for count in counts)
        density = min(1.0, sum(c * len(p) for c, p in zip(counts, target, strict=True)) / len(words))
        factor = min(1.0, self.most / len(words)) * min(1.0, (1 - density) / (1 - self.dense))
        others = {tuple(words_of(str(phrase))) for phrase in row.meta.get(self.vocabulary, ())} - set(target)
        spurious = sum(asserts(words, phrase) for phrase in others if phrase)
        perfect = found == len(target) and factor == 1 and not spurious
        return self.scored(
            answer,
            found / (len(target) + spurious) * factor,
            perfect,
            f"{found} of {len(target)} keywords, {spurious} that are not there",
        )


@verifier("objects_named")
@register("objects_named")
@dataclass(frozen=True, kw_only=True)
class ObjectsNamed(Graded):
    """F1 of the objects that a description names (CHAIR as a reward).

        r = 2 hits / (named + gold)

    `named` are the objects of `vocabulary` that the text names.
    Paper: CHAIR, arXiv:1809.02156 (share of named objects that are not in the picture); its F1 form as a
    reward: vlrl original. Deviates: no synonym table is built in; give `synonyms` {name: [other names]}; a
    denied object ("no dog") is not named. Edge: nothing named: 0, also for an empty gold list unless the text
    has words. Range [0, 1].
    Gold: the objects in the picture.
    """

    refusals = False
    joinable = False
    vocabulary: tuple[str, ...] = ()
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        objects = {" ".join(words_of(str(g))) for g in members(gold)}
        known = {" ".join(words_of(v)) for v in self.vocabulary}
        if not known or not objects <= known:
            raise GoldError(f"vocabulary: must hold every gold object; missing {sorted(objects - known)}")
        target = objects
        answer = self.committed(response)
        words = words_of(answer.text)
        named = {
            " ".join(words_of(v))
            for v in self.vocabulary
            if any(asserts(words, tuple(words_of(n))) for n in (v, *self.synonyms.get(v, ())))
        }
        if not words:
            raise Unread("no words", answer)
        if not named and not target:
            return self.scored(answer, 1.0, True, "no object named, none in the picture")
        score = 2 * len(named & target) / (len(named) + len(target))
        return self.scored(
            answer,
            score,
            named == target,
            f"{len(named & target)} of {len(target)} objects, {len(named - target)} not there",
            ", ".join(sorted(named)),
        )
