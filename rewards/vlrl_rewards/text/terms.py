"""Rewards for translations: the given terms are translated, in the answer or in the thinking, and in the
order of the reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
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
class TermRecall(Reward):
    """TAT-R1's translation reward: given terms are translated.

        answer, thinking:  r = translated terms / terms
        order:             r = pairs of terms in the order of the reference / pairs

    Paper: TAT-R1, arXiv:2505.21172 (answer-align-word, think-align-word, answer-align-order). Deviates: the
    aligned pairs come with the rows (the paper aligns words with a model at reward time); the shares are
    ours, since the paper's formulas are known from a review only; the score of an answer with more than
    `slack` times the words of the reference is multiplied by their ratio, else a list of words would score
    (thinking is not scaled).
    Reads `row.meta[terms]`: translations (a list of texts; alternatives as a list in it); gold answer: the
    reference. Edge: not exactly one `<answer>` block: 0; fewer than two terms in the reference: order is 0.
    No terms raise ValueError. Range [0, 1].
    """

    where: Literal["answer", "thinking", "order"] = "answer"
    terms: str = "terms"
    slack: float = 1.5

    def __call__(self, rollout: Rollout) -> float:
        terms, reference = self._terms(rollout), fold(str(rollout.answer or ""))
        if self.where == "thinking":
            said = fold(" ".join(_THINK.findall(rollout.text[:100_000])))
            return sum(_first(term, said) >= 0 for term in terms) / len(terms)
        spans = answer_tags(visible(rollout.text))
        if len(spans) != 1 or not reference:
            return 0.0
        answer = rollout.text[slice(*spans[0])][:40_000]
        said, length = fold(answer), len(words_of(answer))
        factor = min(1.0, self.slack * len(words_of(str(rollout.answer))) / max(1, length))
        places = [_first(term, said) for term in terms]
        if self.where == "answer":
            return factor * sum(place >= 0 for place in places) / len(terms)
        return factor * _in_order(places, [_first(term, reference) for term in terms])

    def _terms(self, rollout: Rollout) -> list[list[str]]:
        found = [
            [fold(str(t)) for t in (term if isinstance(term, (list, tuple)) else [term])]
            for term in rollout.row.meta.get(self.terms, ())
        ]
        if not found or not all(text for term in found for text in term):
            raise ValueError(
                f"row {rollout.row.id!r}: meta[{self.terms!r}] must be a list of translated terms"
            )
        return found


def _first(term: list[str], text: str) -> int:
    """The first offset of any translation of a term, or -1."""
    return min((place for one in term if (place := place_of(one, text)) >= 0), default=-1)


def _in_order(said: list[int], reference: list[int]) -> float:
    """The share of the ordered pairs of terms of the reference that `said` has in the same order."""
    held = [i for i, place in enumerate(reference) if place >= 0]
    pairs = [(i, j) for i in held for j in held if reference[i] < reference[j]]
    return sum(0 <= said[i] < said[j] for i, j in pairs) / len(pairs) if pairs else 0.0
