"""Whether a rollout goes round in circles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


def repetitive(ids: Sequence[int]) -> bool:
    """Whether some n-gram comes back close by (twice, in 200 tokens and more three times), or one of twice its length at all."""
    size = 2 if len(ids) < 30 else 3 if len(ids) < 100 else 4
    if len(ids) <= 8:
        return False
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in range(len(ids) - size + 1):
        gram = tuple(ids[at : at + size])
        if size <= 2 or len(set(gram)) > 1:
            places[gram].append(at)
    often = 2 if len(ids) < 200 else 3
    if any(b - a < len(ids) // 3 for found in places.values() if len(found) >= often for a, b in zip(found, found[1:])):
        return True
    doubles = [tuple(ids[at : at + 2 * size]) for at in range(len(ids) - 2 * size + 1)]
    return len(ids) >= 4 * size and len(set(doubles)) < len(doubles)
