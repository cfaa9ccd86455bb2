"""Drafts of a sequence's next tokens by n-gram lookup, for speculative decoding (prompt lookup decoding,
Saxena 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

ORDER = 3  # tokens that must have occurred before in the same order
PRIOR = (1, 2)  # drafted tokens that were accepted, and drafted tokens, before any is seen
FIXED_ROWS = (
    16  # a step costs about as much as this number of rows, and one more for every row (docs/benchmarks.md)
)


class NgramLookup:
    """What followed the last occurrence of a sequence's newest `ORDER` tokens, in its prompt or in its own
    completion.

    Edge: a draft that runs into the sequence's end goes on periodically; it ends before a `forbidden` id,
    which the model cannot read as text.
    """

    def __init__(self, ids: Sequence[int], forbidden: Collection[int] = ()) -> None:
        self.ids: list[int] = []
        self.forbidden = forbidden
        self.after: dict[tuple[int, ...], int] = {}  # n-gram -> place of the token that followed it last
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        for token in ids:
            if len(self.ids) >= ORDER:
                self.after[tuple(self.ids[-ORDER:])] = len(self.ids)
            self.ids.append(token)

    def draft(self, count: int) -> list[int]:
        """At most `count` tokens; [] if the newest n-gram is new."""
        place = self.after.get(tuple(self.ids[-ORDER:]))
        drafted: list[int] = []
        while place is not None and len(drafted) < count:
            token = self.ids[place] if place < len(self.ids) else drafted[place - len(self.ids)]
            if token in self.forbidden:
                break
            drafted.append(token)
            place += 1
        return drafted


def worth_running(drafts_R: Sequence[Sequence[int]], counters: Counter[str]) -> bool:
    """Whether a step with these drafts is expected to give more tokens per cost than a step without.

    A step of R sequences whose longest draft has k tokens costs (`FIXED_ROWS` + R (1 + k)) and gives R + a
    sum_r k_r tokens, with the share a of drafted tokens that were accepted so far.
    """
    rows, drafted, longest = len(drafts_R), sum(map(len, drafts_R)), max(map(len, drafts_R), default=0)
    accepted = (counters["accepted"] + PRIOR[0]) / (counters["drafted"] + PRIOR[1])
    return drafted > 0 and (rows + accepted * drafted) * (FIXED_ROWS + rows) > rows * (
        FIXED_ROWS + rows * (1 + longest)
    )
