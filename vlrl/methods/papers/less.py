"""Stable segments, judged by whether right or wrong rollouts hold them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import TokenCredit
from vlrl.types import Group, Rollout

Span = tuple[int, int, int]  # rollout, start, end


def limit_of(entropy: Sequence[float], share: float) -> float:
    """The entropy that a `share` of a rollout's tokens lies below."""
    return sorted(entropy)[min(round(share * len(entropy)), len(entropy) - 1)]


@register("less")
@dataclass(frozen=True)
class LESS(TokenCredit):
    """A_{i,t} = A_i w_{i,t}: w = 1 on the uncertain 1 - `share` of a rollout's tokens; n / N on a segment that n of the N rollouts on its side hold.

    Sides are right and wrong (reward above `threshold`); w = 0 on a segment that both hold, and 1 / N on the other certain tokens. A segment is a
    run of at least `least` tokens under the rollout's own entropy threshold (nats); a rollout holds it where it is part of a segment of its own.
    Paper: Chen et al. 2025, arXiv:2512.00908, sec. 4; share 0.8 and least 5 as in the released code (recipe/less).  Deviates: that code stops at the
    first other rollout that holds a segment, and lets overlapping segments overwrite each other; here all holders count, both sides outweigh one,
    and of several shares the largest holds.
    Edge: a rollout alone on its side keeps A_i but for what the other side shares.
    """

    share: float = 0.8
    least: int = 5
    threshold: float = 0.5
    needs = ("entropy",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        right = [rollout.reward > self.threshold for rollout in group]
        side = {own: max(right.count(own), 1) for own in (True, False)}
        limits = [limit_of(rollout.signals["entropy"], self.share) for rollout in group]
        weights = [
            [1 / side[own] if h <= limit else 1.0 for h in rollout.signals["entropy"]]
            for own, limit, rollout in zip(right, limits, group, strict=True)
        ]
        both: list[Span] = []
        for spans in self.shared(group, limits):
            holders = {i for i, _, _ in spans}
            if len({right[i] for i in holders}) == 2:
                both += spans
                continue
            for i, start, end in spans:
                weights[i][start:end] = [max(w, len(holders) / side[right[i]]) for w in weights[i][start:end]]
        for i, start, end in both:
            weights[i][start:end] = [0.0] * (end - start)
        return [[a * w for w in row] for a, row in zip(advantages, weights, strict=True)]

    def shared(self, group: Group, limits: Sequence[float]) -> Iterator[list[Span]]:
        """For each different segment of the group: everywhere that it stands inside a segment."""
        ids = [rollout.ids for rollout in group]
        segments = [(i, *span) for i, (rollout, limit) in enumerate(zip(group, limits, strict=True)) for span in self.segments(rollout, limit)]
        begins: dict[tuple[int, ...], list[Span]] = defaultdict(list)
        for i, start, end in segments:
            for at in range(start, end - self.least + 1):
                begins[tuple(ids[i][at : at + self.least])].append((i, at, end))
        for text in {tuple(ids[i][start:end]): None for i, start, end in segments}:
            places = begins[text[: self.least]]
            yield [(i, at, at + len(text)) for i, at, end in places if at + len(text) <= end and tuple(ids[i][at : at + len(text)]) == text]

    def segments(self, rollout: Rollout, limit: float) -> Iterator[tuple[int, int]]:
        """(start, end) of the runs of certain tokens that are long enough."""
        start = 0
        for t, h in enumerate([*rollout.signals["entropy"], float("inf")]):
            if h >= limit:
                if t - start >= self.least:
                    yield start, t
                start = t + 1
