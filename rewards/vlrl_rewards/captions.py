"""Rewards for descriptions: keywords, objects named and not made up, n-gram consensus."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged, members
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


@judged("keywords")
@register("keywords")
@dataclass(frozen=True, kw_only=True)
class Keywords(Graded):
    """r = (keywords mentioned / keywords) x min(1, most / words) x min(1, (1 - density) / (1 - dense)), density = keyword words / words.

    Paper: PeBR-R1, arXiv:2509.13031 (keyword part 0.4, length part 1 or 512 / length, of its perception reward; the CLIP part needs a second model).
    Deviates: whole words (substrings count there); the density factor is ours: a bare list of keywords earns nothing, a sentence around them all.
    Edge: empty: 0; naming a keyword twice counts once. Range [0, 1]. Gold: a list of words or phrases.
    """

    refusals = False
    joinable = False
    most: int = 400
    dense: float = 0.7

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 < self.dense < 1:
            raise ValueError(f"most, dense: must be at least 1 and in (0, 1), got {self.most} and {self.dense}")

    def target(self, gold: Any, scene: Scene) -> list[tuple[str, ...]]:
        return phrase_pattern([str(g) for g in members(gold)])

    def grade(self, target: list[tuple[str, ...]], answer: Answer, scene: Scene) -> Grade:
        words = words_of(answer.text)
        if not words:
            return self.refuse("no words")
        counts = [mentions(words, phrase) for phrase in target]
        found = sum(count > 0 for count in counts)
        density = min(1.0, sum(c * len(p) for c, p in zip(counts, target, strict=True)) / len(words))
        factor = min(1.0, self.most / len(words)) * min(1.0, (1 - density) / (1 - self.dense))
        return Grade(found / len(target) * factor, found == len(target) and factor == 1, f"{found} of {len(target)} keywords")


@judged("objects_named")
@register("objects_named")
@dataclass(frozen=True, kw_only=True)
class ObjectsNamed(Graded):
    """r = 2 hits / (named + gold), over the objects of `vocabulary` that the text names; made-up objects cost as much as missed ones.

    Paper: CHAIR, arXiv:1809.02156 (share of named objects that are not there); its F1 form as a reward: vlrl original.
    Deviates: no synonym table is built in; give `synonyms` {name: [other names]}; "no dog" names none.
    Edge: nothing named: 0 (so silence never pays), also for an empty gold list unless the text has words. Range [0, 1].
    Gold: the objects in the picture.
    """

    refusals = False
    joinable = False
    vocabulary: tuple[str, ...] = ()
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def target(self, gold: Any, scene: Scene) -> set[str]:
        objects = {" ".join(words_of(str(g))) for g in members(gold)}
        known = {" ".join(words_of(v)) for v in self.vocabulary}
        if not known or not objects <= known:
            raise ValueError(f"vocabulary: must hold every gold object; missing {sorted(objects - known)}")
        return objects

    def grade(self, target: set[str], answer: Answer, scene: Scene) -> Grade:
        words = words_of(answer.text)
        named = {" ".join(words_of(v)) for v in self.vocabulary if any(asserts(words, tuple(words_of(n))) for n in (v, *self.synonyms.get(v, ())))}
        if not words:
            return self.refuse("no words")
        if not named and not target:
            return Grade(1.0, True, "names nothing, and there is nothing")
        score = 2 * len(named & target) / (len(named) + len(target))
        return Grade(
            score, named == target, f"{len(named & target)} of {len(target)} objects, {len(named - target)} made up", ", ".join(sorted(named))
        )


def ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    """Counts of the n-grams of one size."""
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def cider(said: Sequence[str], references: Sequence[Sequence[str]], idf: Mapping[tuple[str, ...], float] | None = None, sigma: float = 6.0) -> float:
    """CIDEr-D over 10, in [0, 1]: mean over n = 1..4 and references of cos(tf-idf, clipped) exp(-(length difference)^2 / (2 sigma^2)).

    Source: arXiv:1411.5726, eq. 3-6. `idf` None: every n-gram weighs 1 (no corpus at hand). Sizes that no reference has are left out.
    """
    total, sizes = 0.0, [n for n in range(1, 5) if any(len(r) >= n for r in references)]
    for size in sizes:
        mine = {g: c * (idf.get(g, 0.0) if idf is not None else 1.0) for g, c in ngrams(said, size).items()}
        for reference in references:
            theirs = {g: c * (idf.get(g, 0.0) if idf is not None else 1.0) for g, c in ngrams(reference, size).items()}
            norm = math.sqrt(sum(v * v for v in mine.values()) * sum(v * v for v in theirs.values()))
            dot = sum(min(v, theirs[g]) * theirs[g] for g, v in mine.items() if g in theirs)
            total += (dot / norm if norm else 0.0) * math.exp(-((len(said) - len(reference)) ** 2) / (2 * sigma**2))
    return min(1.0, total / (len(sizes) * len(references))) if sizes else 0.0


@judged("caption", "cider")
@register("caption")
@dataclass(frozen=True, kw_only=True)
class Caption(Graded):
    """r = CIDEr-D / 10 against the nearest reference caption ("best"), or averaged over the references ("mean", as published).

    Paper: CIDEr, arXiv:1411.5726, eq. 3-6, D variant (clipped counts, Gaussian length penalty, sigma 6).
    Deviates: without `row.meta["idf"]` ({"a dog": weight, ...}) all n-grams weigh 1; words are not stemmed. BLEU, ROUGE and chrF are kinds of their
    own.
    Edge: empty: 0; range [0, 1]; repeating words does not pay (clipped, and the length counts). Gold: a caption or a list of them. `correct_at`: for
    verdicts.
    """

    refusals = False
    joinable = False
    sigma: float = 6.0
    references: Literal["best", "mean"] = "best"
    correct_at: float = 0.5

    def target(self, gold: Any, scene: Scene) -> list[list[str]]:
        references = [words_of(str(g)) for g in ([gold] if isinstance(gold, str) else members(gold))]
        if not references or not all(references):
            raise ValueError(f"answer: the gold caption {gold!r} is empty")
        return references

    def grade(self, target: list[list[str]], answer: Answer, scene: Scene) -> Grade:
        weights = scene.meta.get("idf")
        idf = {tuple(words_of(k)): float(v) for k, v in weights.items()} if weights else None
        scores = [cider(words_of(answer.text), [reference], idf, self.sigma) for reference in target]
        score = max(scores) if self.references == "best" else sum(scores) / len(scores)
        return Grade(score, score >= self.correct_at, f"CIDEr-D {10 * score:.2f} of 10")
