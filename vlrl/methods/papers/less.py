"""LESS: low-entropy segments get credit by the share of correct, or of wrong, rollouts that contain them.

Paper: Chen et al. 2025 (LESS), arXiv:2512.00908, with released code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenCredit
from vlrl.types import Group, Rollout

Span = tuple[int, int, int]  # rollout, start, end


@register("less")
@dataclass(frozen=True)
class LESS(TokenCredit):
    """LESS's credit: A_{i,t} = A_i w_{i,t}; w = n / N on a segment that n of the N rollouts on its side
    contain, 0 on one that both sides contain.

    The sides are the correct and the wrong rollouts. A segment is a run of low-entropy tokens; a rollout
    contains it where it is part of a segment of its own. Outside of segments w is 1 / N on low-entropy
    tokens, else 1. Paper: Chen et al. 2025 (LESS), arXiv:2512.00908, sec. 4; values of the released code
    (recipe/less). Deviates: that code stops at the first other rollout that contains a segment, and
    overlapping segments overwrite each other; here all count; 0 has priority, then the largest share.

    Attributes:
        share: Low-entropy tokens: this share of a rollout's trained tokens, those with the lowest entropy.
        min_length: Tokens of a segment at least.
    """

    share: float = 0.8
    min_length: int = 5
    needs = ("entropy",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        correct = [rollout.correct for rollout in group]
        side_size = {side: max(correct.count(side), 1) for side in (True, False)}
        thresholds = [
            entropy_threshold([h for h in trained_entropy(rollout) if h < math.inf], self.share)
            for rollout in group
        ]
        weights = [
            [1 / side_size[side] if h <= threshold else 1.0 for h in trained_entropy(rollout)]
            for side, threshold, rollout in zip(correct, thresholds, group, strict=True)
        ]
        on_both_sides: list[Span] = []
        for spans in self.occurrences(group, thresholds):
            holders = {i for i, _, _ in spans}
            if len({correct[i] for i in holders}) == 2:
                on_both_sides += spans
                continue
            for i, start, end in spans:
                weights[i][start:end] = [
                    max(w, len(holders) / side_size[correct[i]]) for w in weights[i][start:end]
                ]
        for i, start, end in on_both_sides:
            weights[i][start:end] = [0.0] * (end - start)
        return [[a * w for w in row] for a, row in zip(advantages, weights, strict=True)]

    def occurrences(self, group: Group, thresholds: Sequence[float]) -> Iterator[list[Span]]:
        """For each distinct segment of the group: all places where it is part of a segment."""
        ids = [rollout.ids for rollout in group]
        segments = [
            (i, *span)
            for i, (rollout, limit) in enumerate(zip(group, thresholds, strict=True))
            for span in self.segments(rollout, limit)
        ]
        by_beginning: dict[tuple[int, ...], list[Span]] = defaultdict(list)
        for i, start, end in segments:
            for at in range(start, end - self.min_length + 1):
                by_beginning[tuple(ids[i][at : at + self.min_length])].append((i, at, end))
        for tokens in {tuple(ids[i][start:end]): None for i, start, end in segments}:
            places = by_beginning[tokens[: self.min_length]]
            n = len(tokens)
            yield [
                (i, at, at + n)
                for i, at, end in places
                if at + n <= end and tuple(ids[i][at : at + n]) == tokens
            ]

    def segments(self, rollout: Rollout, threshold: float) -> Iterator[tuple[int, int]]:
        """(start, end) of the runs of at least `min_length` tokens with an entropy below the threshold."""
        start = 0
        for t, h in enumerate([*trained_entropy(rollout), math.inf]):
            if h >= threshold:
                if t - start >= self.min_length:
                    yield start, t
                start = t + 1


def trained_entropy(rollout: Rollout) -> list[float]:
    """The entropies of a rollout's tokens, infinite at those that are not trained on: they are in no segment
    and count for no threshold."""
    return [
        h if trained else math.inf
        for h, trained in zip(rollout.signals["entropy"], rollout.trained_mask, strict=True)
    ]


def entropy_threshold(entropy: Sequence[float], share: float) -> float:
    """The entropy below which a `share` of the tokens lies; 0 without tokens."""
    return sorted(entropy)[min(round(share * len(entropy)), len(entropy) - 1)] if entropy else 0.0
