"""Stable segments, judged by whether right or wrong rollouts hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group, Rollout


@register("less")
@dataclass(frozen=True)
class LESS(Credit):
    """A_{i,t} = A_i * factor on low-entropy segments (runs of tokens with entropy at most `entropy` nats), A_i elsewhere.

    factor: `right` where only right rollouts of the group hold the segment's tokens, `wrong` where only wrong ones do, `shared` where both do.
    Held means that every `n`-gram window over the token (the whole segment, if it is shorter) is compared with those of the other rollouts.
    Paper: Chen et al. 2025, arXiv:2512.00908, sec. 4: amplify, suppress, neutralise.  Deviates: factors, threshold and the matching by n-grams are
    vlrl's.
    Edge: a segment that no other rollout holds counts as its own side's.
    """

    entropy: float = 0.1
    n: int = 3
    right: float = 1.2
    wrong: float = 1.2
    shared: float = 0.0
    threshold: float = 0.5
    needs = ("entropy",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        held: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
        windows = [list(self.windows(rollout)) for rollout in group]
        for rollout, found in zip(group, windows):
            held[rollout.reward > self.threshold].update(tuple(rollout.ids[start:end]) for start, end in found)
        result = []
        for rollout, a, found in zip(group, advantages, windows, strict=True):
            own = rollout.reward > self.threshold
            values = [a] * len(rollout)
            common: set[int] = set()
            for start, end in found:
                if tuple(rollout.ids[start:end]) in held[not own]:
                    common.update(range(start, end))
            for t in {t for start, end in found for t in range(start, end)}:
                values[t] = a * (self.shared if t in common else self.right if own else self.wrong)
            result.append(values)
        return result

    def windows(self, rollout: Rollout) -> Iterator[tuple[int, int]]:
        """(start, end) of the n-grams of each low-entropy segment; of a shorter segment the whole."""
        low = [h <= self.entropy for h in rollout.signals["entropy"]]
        start = 0
        while start < len(low):
            if not low[start]:
                start += 1
                continue
            end = start
            while end < len(low) and low[end]:
                end += 1
            for at in range(start, max(end - self.n, start) + 1):
                yield at, min(at + self.n, end)
            start = end
