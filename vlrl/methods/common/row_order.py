"""The order of rows: a shuffled, weighted mixture of sources of any size, computed from the position in
constant memory."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

ROUNDS = 4
SEGMENT = 1024  # rows within which sources are mixed where blocks are read one after the other


def permute(index: int, size: int, key: str) -> int:
    """The image of `index` (0..size-1) under the pseudo-random permutation named by `key`.

    A Feistel network on the smallest even number of bits that holds `size`, applied until the result is below
    `size` (fewer than four times on average), so an order of ten million rows needs no list.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking over Luby-Rackoff.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            mixed = hashlib.blake2b(f"{key}|{turn}|{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "little") & mask)
        index = left << half | right
        if index < size:
            return index


def shares(sizes: Sequence[int], weights: Sequence[float], temperature: float = 1.0) -> list[int]:
    """Rows of each source in one epoch; they sum to sum(sizes), by largest remainders.

    Weights set the shares among the sources that have one (> 0); the others keep their own size. With no
    weight at all and temperature T, source i gets a share proportional to size_i ** (1 / T): 1 keeps the
    sizes, a large T is uniform.
    """
    if not any(weights):
        weights = [size ** (1 / temperature) for size in sizes] if temperature != 1 else weights
    total = sum(size for size, weight in zip(sizes, weights) if weight)
    exact = [total * weight / (sum(weights) or 1) if weight else size for size, weight in zip(sizes, weights)]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: sum(sizes) - sum(counts)]:
        counts[i] += 1
    return counts


class BlockOrder:
    """A permutation of rows 0..n-1 that stays within `together` blocks at a time: blocks in random order,
    rows shuffled among successive blocks.

    The order of blocks b_0, b_1, ... is the permutation named by `key`; window w holds the rows of b_{wk} ..
    b_{wk+k-1} (k = `together`) in an order of its own. What a buffer of k blocks gives, as a function of the
    index alone: nothing is kept, and a run resumes anywhere. Uniform only where one window holds all blocks.
    `ends` are the row numbers where blocks end. Memory: three numbers per block.
    """

    def __init__(self, ends: Sequence[int], together: int, key: str) -> None:
        self.starts = [0, *map(int, ends[:-1])]
        self.order = [permute(block, len(ends), f"{key}|blocks") for block in range(len(ends))]
        self.passed = [
            0,
            *accumulate(int(ends[block]) - self.starts[block] for block in self.order),
        ]  # rows before each place in the order
        self.together, self.key = together, key

    def __call__(self, index: int) -> int:
        window = (bisect.bisect_right(self.passed, index) - 1) // self.together
        first, last = window * self.together, min((window + 1) * self.together, len(self.order))
        begin = self.passed[first]
        place = begin + permute(index - begin, self.passed[last] - begin, f"{self.key}|window {window}")
        at = bisect.bisect_right(self.passed, place, first, last + 1) - 1
        return self.starts[self.order[at]] + place - self.passed[at]


class Mixture:
    """Rows of several sources as one endless sequence: `row(position)`.

    An epoch holds `counts[i]` rows of source i in mixed order. All rows of a source come before any of them
    comes again, also where an epoch takes only a part of it. With `blocks` k > 0, a source that tells its
    `block_ends` is read in a `BlockOrder` of k blocks at a time, and the sources are mixed within segments of
    about `SEGMENT` rows, of which each has the same share of every source.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[Row]],
        weights: Mapping[str, float],
        seed: int,
        temperature: float = 1.0,
        shuffle: bool = True,
        blocks: int = 0,
    ) -> None:
        for name, rows in parts.items():
            if not len(rows):
                raise ConfigError(
                    f"data.train.{name}: the source has no rows (after selection); check its path, split "
                    "and `select`"
                )
        if not parts:
            raise ConfigError(
                "data.train: no source is named; give at least one, as in `data: {train: {digits: {name: "
                "lab_digits}}}`"
            )
        self.parts = list(parts.values())
        self.counts = shares(
            [len(rows) for rows in self.parts], [weights.get(name, 0.0) for name in parts], temperature
        )
        self.ends = list(accumulate(self.counts))
        self.seed, self.shuffle, self.blocks = seed, shuffle, blocks if shuffle else 0
        self.block_order = lru_cache(maxsize=2 * len(self.parts))(self._block_order)

    def __len__(self) -> int:
        """Rows per epoch."""
        return self.ends[-1]

    def row(self, position: int) -> Row:
        """The row at `position` (0-based, over all epochs)."""
        epoch, index = divmod(position, len(self))
        part, taken = self._in_segment(epoch, index) if self.blocks else self._in_epoch(epoch, index)
        lap, within = divmod(epoch * self.counts[part] + taken, len(self.parts[part]))
        if self.blocks:
            within = self.block_order(part, lap)(within)
        elif self.shuffle:
            within = permute(within, len(self.parts[part]), f"{self.seed}|part {part}|lap {lap}")
        return self.parts[part][within]

    def _in_epoch(self, epoch: int, index: int) -> tuple[int, int]:
        """(source, number among its rows of the epoch) at a place of an epoch."""
        place = permute(index, len(self), f"{self.seed}|epoch {epoch}") if self.shuffle else index
        part = bisect.bisect_right(self.ends, place)
        return part, place - (self.ends[part] - self.counts[part])

    def _in_segment(self, epoch: int, index: int) -> tuple[int, int]:
        """As `_in_epoch`, with rows of neighbouring numbers at neighbouring places: segment s of S has the
        rows from counts * s / S on."""
        segments = -(-len(self) // SEGMENT)

        def begins(segment: int) -> list[int]:
            return [count * segment // segments for count in self.counts]

        segment = index * segments // len(self)
        while sum(begins(segment + 1)) <= index:
            segment += 1
        first, last = begins(segment), begins(segment + 1)
        place = permute(
            index - sum(first), sum(last) - sum(first), f"{self.seed}|epoch {epoch}|segment {segment}"
        )
        for part, (begin, end) in enumerate(zip(first, last)):
            if place < end - begin:
                return part, begin + place
            place -= end - begin
        raise AssertionError("unreachable: a segment's places are those of its sources")

    def _block_order(self, part: int, lap: int) -> BlockOrder:
        rows = self.parts[part]
        return BlockOrder(
            getattr(rows, "block_ends", [len(rows)]), self.blocks, f"{self.seed}|part {part}|lap {lap}"
        )
