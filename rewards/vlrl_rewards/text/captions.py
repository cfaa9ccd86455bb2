"""Caption rewards: CIDEr-D against reference captions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded, members
from vlrl_rewards.kinds import verifier
from vlrl_rewards.text.mentions import words_of


def ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    """Counts of the n-grams of one size."""
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def cider(
    said: Sequence[str],
    references: Sequence[Sequence[str]],
    idf: Mapping[tuple[str, ...], float] | None = None,
    sigma: float = 6.0,
) -> float:
    """CIDEr-D over 10, in [0, 1]: mean over n = 1..4 and references of cos(tf-idf, clipped) exp(-(length
    difference)^2 / (2 sigma^2)).

    Source: arXiv:1411.5726, eq. 3-6. `idf` None: the weight of every n-gram is 1. Sizes n that no reference
    has are left out.
    """
    total, sizes = 0.0, [n for n in range(1, 5) if any(len(r) >= n for r in references)]
    for size in sizes:
        mine = {g: c * (idf.get(g, 0.0) if idf is not None else 1.0) for g, c in ngrams(said, size).items()}
        for reference in references:
            theirs = {
                g: c * (idf.get(g, 0.0) if idf is not None else 1.0)
                for g, c in ngrams(reference, size).items()
            }
            norm = math.sqrt(sum(v * v for v in mine.values()) * sum(v * v for v in theirs.values()))
            dot = sum(min(v, theirs[g]) * theirs[g] for g, v in mine.items() if g in theirs)
            total += (dot / norm if norm else 0.0) * math.exp(
                -((len(said) - len(reference)) ** 2) / (2 * sigma**2)
            )
    return min(1.0, total / (len(sizes) * len(references))) if sizes else 0.0


@verifier("caption", "cider")
@register("caption")
@dataclass(frozen=True, kw_only=True)
class Caption(Graded):
    """Image captioning reward: CIDEr-D.

        r = CIDEr-D / 10

    The maximum over the reference captions ("best"), or the mean ("mean", as published).
    Paper: CIDEr, arXiv:1411.5726, eq. 3-6, D variant (clipped counts, Gaussian length penalty, sigma 6).
    Deviates: without `row.meta["idf"]` ({"a dog": weight, ...}) every weight is 1; words are not stemmed.
    BLEU, ROUGE and chrF are separate kinds.
    Edge: empty: 0. Repeated words do not raise the score (clipped counts, length penalty). Range [0, 1].
    Gold: a caption or a list of them.
    """

    refusals = False
    joinable = False
    sigma: float = 6.0
    references: Literal["best", "mean"] = "best"
    correct_at: float = 0.5

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        references = [words_of(str(g)) for g in ([gold] if isinstance(gold, str) else members(gold))]
        if not references or not all(references):
            raise GoldError(f"answer: the gold caption {gold!r} is empty")
        target = references
        answer = self.committed(response)
        weights = row.meta.get("idf")
        idf = {tuple(words_of(k)): float(v) for k, v in weights.items()} if weights else None
        scores = [cider(words_of(answer.text), [reference], idf, self.sigma) for reference in target]
        score = max(scores) if self.references == "best" else sum(scores) / len(scores)
        return self.scored(answer, score, score >= self.correct_at, f"CIDEr-D {10 * score:.2f} of 10")
