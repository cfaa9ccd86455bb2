"""What a text names and does not deny: keywords, objects that are there or made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged, members
from vlrl_rewards.phrases import asserts, mentions, phrase_pattern, words_of


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
