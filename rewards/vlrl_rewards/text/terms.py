"""Rewards for translations: the given terms are translated, in the answer or in the thinking, and in the
order of the reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import answer_tags, visible
from vlrl_rewards.text.metrics import fold, words_of

_THINK = re.compile(r"<think>(.{0,40000}?)</think>", re.DOTALL | re.IGNORECASE)
_NO_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")


def place_of(term: str, text: str) -> int:
    """The offset of a folded term in a folded text, as whole words (anywhere in scripts without spaces); -1
    if it does not occur."""
    return text.find(term) if _NO_SPACES.search(term) else f" {text} ".find(f" {term} ")


@register("term_recall")
@dataclass(frozen=True, kw_only=True)
class TermRecall(Graded):
    """TAT-R1's translation reward: given terms are translated.

        answer, thinking:  r = translated terms / terms
        order:             r = pairs of terms in the order of the reference / pairs

    Paper: TAT-R1, arXiv:2505.21172 (answer-align-word, think-align-word, answer-align-order). Deviates:
    rewards/DEVIATIONS.md. Reads `row.meta[terms]`: translations (a list of texts; alternatives as a list in
    it); gold answer: the reference. Edge: not exactly one `<answer>` block: 0; fewer than two terms in the
    reference: order is 0. No terms raise ValueError. Range [0, 1].
    """

    where: Literal["answer", "thinking", "order"] = "answer"
    terms: str = "terms"
    slack: float = 1.5

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        terms, reference = self._terms(row), fold(str(gold or ""))
        if self.where == "thinking":
            said = fold(" ".join(_THINK.findall(response.text[:100_000])))
            found = sum(_first(term, said) >= 0 for term in terms)
            return self.scored(response.whole, found / len(terms), None, f"{found} of {len(terms)} terms")
        spans = answer_tags(visible(response.text))
        if len(spans) != 1 or not reference:
            raise Unread("not one answer block", response.whole)
        answer = Answer(response.text[slice(*spans[0])][:40_000], *spans[0], "tag")
        said, length = fold(answer.text), len(words_of(answer.text))
        factor = min(1.0, self.slack * len(words_of(str(gold))) / max(1, length))
        places = [_first(term, said) for term in terms]
        found = sum(place >= 0 for place in places)
        order = self.where == "order"
        share = (
            _in_order(places, [_first(term, reference) for term in terms]) if order else found / len(terms)
        )
        return self.scored(answer, factor * share, None, f"{found} of {len(terms)} terms")

    def _terms(self, row: Row) -> list[list[str]]:
        found = [
            [fold(str(t)) for t in (term if isinstance(term, (list, tuple)) else [term])]
            for term in row.meta.get(self.terms, ())
        ]
        if not found or not all(text for term in found for text in term):
            raise GoldError(f"row {row.id!r}: meta[{self.terms!r}] must be a list of translated terms")
        return found


def _first(term: list[str], text: str) -> int:
    """The first offset of any translation of a term, or -1."""
    return min((place for one in term if (place := place_of(one, text)) >= 0), default=-1)


def _in_order(said: list[int], reference: list[int]) -> float:
    """The share of the ordered pairs of terms of the reference that `said` has in the same order."""
    held = [i for i, place in enumerate(reference) if place >= 0]
    pairs = [(i, j) for i in held for j in held if reference[i] < reference[j]]
    return sum(0 <= said[i] < said[j] for i, j in pairs) / len(pairs) if pairs else 0.0
