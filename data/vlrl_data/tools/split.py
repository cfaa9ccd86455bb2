"""Splits rows into parts (train, held-out) by id, by shared media, or by a `meta` field."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from vlrl.plugins.registry import ConfigError
from vlrl.types import Row


def split(
    rows: Iterable[Row], parts: Mapping[str, float], by: str = "id", seed: int = 0
) -> dict[str, list[Row]]:
    """Rows by part. The part of a row depends only on (seed, its key), so adding rows moves none of the
    others.

    `by`: id, media (rows that share any image or video stay together), or the name of a `meta` field (rows
    with one value stay together).
    """
    total = sum(parts.values())
    if not parts or min(parts.values()) <= 0:
        raise ConfigError(f"parts: {dict(parts)} must name shares above 0, as in train=0.9,heldout=0.1")
    rows = list(rows)
    keys = _media_keys(rows) if by == "media" else [_key(row, by) for row in rows]
    out: dict[str, list[Row]] = {name: [] for name in parts}
    for row, key in zip(rows, keys):
        place = int.from_bytes(hashlib.sha256(f"{seed}|{key}".encode()).digest()[:8], "big") / 2**64 * total
        for name, share in parts.items():
            place -= share
            if place < 0 or name == list(parts)[-1]:
                out[name].append(row)
                break
    return out


def _key(row: Row, by: str) -> str:
    if by == "id":
        return row.id
    if by not in row.meta:
        raise ConfigError(
            f"by: row {row.id!r} has no meta field {by!r}. Known there: "
            f"{', '.join(sorted(row.meta)) or 'none'}; or give id, or media."
        )
    return str(row.meta[by])


def _media_keys(rows: list[Row]) -> list[str]:
    """One key per set of rows that are connected by shared media (union-find); a row without media is a set
    of its own."""
    parent = list(range(len(rows)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[str, int] = {}
    for i, row in enumerate(rows):
        for medium in row.media:
            j = first.setdefault(medium.key, i)
            low, high = sorted((root(i), root(j)))
            parent[high] = low
    return [rows[root(i)].id for i in range(len(rows))]
