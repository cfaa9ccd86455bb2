"""The order of rows: a shuffled, weighted mixture of sources of any size, computed from the position in constant memory."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate

from vlrl.registry import ConfigError
from vlrl.types import Row

ROUNDS = 4


def permute(index: int, size: int, key: str) -> int:
    """The image of `index` (0..size-1) under the pseudo-random permutation named by `key`.

    A Feistel network on the smallest even number of bits that holds `size`, applied until the result is below `size` (fewer than four times on
    average), so an order of ten million rows needs no list.

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

    Weights set the shares among the sources that have one (> 0); the others keep their own size. With no weight at all and temperature T,
    source i gets a share proportional to size_i ** (1 / T): 1 keeps the sizes, a large T is uniform.
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


class Mixture:
    """Rows of several sources as one endless sequence: `row(position)`.

    An epoch holds `counts[i]` rows of source i in mixed order. All rows of a source come before any of them comes again, also where an epoch takes
    only a part of it.
    """

    def __init__(
        self, parts: Mapping[str, Sequence[Row]], weights: Mapping[str, float], seed: int, temperature: float = 1.0, shuffle: bool = True
    ) -> None:
        for name, rows in parts.items():
            if not len(rows):
                raise ConfigError(f"data.train.{name}: the source has no rows (after selection); check its path, split and `select`")
        if not parts:
            raise ConfigError("data.train: no source is named; give at least one, as in `data: {train: {digits: {name: lab_digits}}}`")
        self.parts = list(parts.values())
        self.counts = shares([len(rows) for rows in self.parts], [weights.get(name, 0.0) for name in parts], temperature)
        self.ends = list(accumulate(self.counts))
        self.seed, self.shuffle = seed, shuffle

    def __len__(self) -> int:
        """Rows per epoch."""
        return self.ends[-1]

    def row(self, position: int) -> Row:
        """The row at `position` (0-based, over all epochs)."""
        epoch, index = divmod(position, len(self))
        place = permute(index, len(self), f"{self.seed}|epoch {epoch}") if self.shuffle else index
        part = bisect.bisect_right(self.ends, place)
        taken = epoch * self.counts[part] + place - (self.ends[part] - self.counts[part])
        lap, within = divmod(taken, len(self.parts[part]))
        if self.shuffle:
            within = permute(within, len(self.parts[part]), f"{self.seed}|part {part}|lap {lap}")
        return self.parts[part][within]
