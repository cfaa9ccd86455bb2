"""Sweeps: tests of every plug-in, preset or family whose cases are alike (the mark `sweep`). `make test` runs
the same sample of each in every run, `make test-sweep` all cases; pytest by itself runs all, too."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sized
from typing import Protocol

SHARE = 5  # one case of so many is in the sample
BATCH = 25


class Case(Protocol):
    """What pytest.Item has."""

    nodeid: str
    keywords: Iterable[str]


def sampled(items: Iterable[Case]) -> set[Case]:
    """All tests that are no sweep; of each sweep one case of `SHARE`, at least one, by the checksums of their
    ids: a case that is added or taken away moves few others."""
    kept, sweeps = set(), defaultdict(list)
    for item in items:
        if "sweep" in item.keywords:
            sweeps[item.nodeid.partition("[")[0]].append(item)
        else:
            kept.add(item)
    for cases in sweeps.values():
        cases.sort(key=lambda case: zlib.crc32(case.nodeid.encode()))
        kept.update(cases[: -(-len(cases) // SHARE)])
    return kept


def batches(rows: Sized) -> list[range]:
    """The places of a table's rows, in parts that are one test each: what pytest does around a test takes
    milliseconds, as long as many a verdict."""
    return [range(start, min(start + BATCH, len(rows))) for start in range(0, len(rows), BATCH)]
