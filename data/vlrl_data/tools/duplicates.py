"""Duplicate rows: by text, by image hash, and against evaluation suites."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError
from vlrl.types import Clip, Media, Row, Sound

BITS = 64


class Match(NamedTuple):
    """Row `id` repeats `other`."""

    id: str
    other: str
    reason: str


def words(text: str) -> list[str]:
    """Lower-case words and numbers; markers, punctuation and accents left out."""
    text = (
        unicodedata.normalize("NFKD", re.sub(r"<(image|video)>", " ", text))
        .encode("ascii", "ignore")
        .decode()
    )
    return re.findall(r"[a-z0-9]+", text.lower())


def text_of(row: Row) -> str:
    """Question, choices and conversation."""
    turns = [str(turn["content"]) for turn in row.messages]
    return " ".join([row.question, *turns, *row.choices])


def image_hash(medium: Media) -> int:
    """64-bit dHash: whether each of 8 x 8 cells is darker than the one to its right. Robust to resizing and
    recompression.

    Of a video, the middle frame is hashed; of a sound, the content: only the same sound is near.

    Source: Krawetz 2013, "Kind of like that" (dHash).
    """
    if medium.kind == "audio":
        return int.from_bytes(hashlib.sha256(medium.key.encode()).digest()[:8])
    loaded = medium.load()
    assert not isinstance(loaded, Sound), medium.key
    image = Image.fromarray(loaded.frames_THWC[len(loaded) // 2]) if isinstance(loaded, Clip) else loaded
    cells = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = (cells[:, 1:] > cells[:, :-1]).ravel()
    return int("".join("1" if bit else "0" for bit in bits), 2)


def distance(a: int, b: int) -> int:
    """The number of bits that differ."""
    return (a ^ b).bit_count()


class HashIndex:
    """Finds the hashes within `radius` bits of a given one: of radius + 1 bands of bits, at least one is
    equal (pigeonhole)."""

    def __init__(self, radius: int) -> None:
        if not 0 <= radius < 16:
            raise ConfigError(f"radius: {radius} bits is not between 0 and 15")
        self.radius = radius
        edges = np.linspace(0, BITS, radius + 2).astype(int)
        self.bands = list(zip(edges[:-1].tolist(), edges[1:].tolist()))
        self.tables: list[dict[int, list[tuple[int, str]]]] = [defaultdict(list) for _ in self.bands]

    def _keys(self, value: int) -> list[int]:
        return [value >> low & ((1 << (high - low)) - 1) for low, high in self.bands]

    def add(self, value: int, name: str) -> None:
        """Add a hash under a name."""
        for table, key in zip(self.tables, self._keys(value)):
            table[key].append((value, name))

    def near(self, value: int) -> list[str]:
        """Names of the hashes within the radius, nearest first."""
        found = {
            name: distance(value, other)
            for table, key in zip(self.tables, self._keys(value))
            for other, name in table.get(key, ())
        }
        return sorted(
            (name for name, bits in found.items() if bits <= self.radius), key=lambda name: found[name]
        )


def dedup(rows: Iterable[Row], by: str = "both", radius: int = 4) -> list[Match]:
    """Rows that repeat an earlier one: the same words (`text`), similar images in the same order (`image`),
    or `both` at once.

    Rows without images are compared by text alone. All flat images have hash 0, so they count only together
    with equal text.
    """
    if by not in ("text", "image", "both"):
        raise ConfigError(f"by: {by!r} is unknown. Known: text, image, both.")
    seen_text: dict[tuple, list[tuple[str, list[int]]]] = defaultdict(list)
    index = HashIndex(radius)
    hashes: dict[str, list[int]] = {}
    matches = []
    for row in rows:
        own: list[int] = [] if by == "text" else [image_hash(medium) for medium in row.media]
        if by == "image" and own and any(own):
            alike = [
                name for name in index.near(next(filter(None, own))) if _alike(hashes[name], own, radius)
            ]
            reason = "its images look like"
            index.add(next(filter(None, own)), row.id)
            hashes[row.id] = own
        else:
            text = tuple(words(text_of(row)))
            alike = [name for name, other in seen_text[text] if _alike(other, own, radius)]
            reason = "it has the same words as"
            seen_text[text].append((row.id, own))
        if alike:
            matches.append(Match(row.id, alike[0], reason))
    return matches


def _alike(a: Sequence[int], b: Sequence[int], radius: int) -> bool:
    return len(a) == len(b) and all(distance(x, y) <= radius for x, y in zip(a, b))


def ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """All n-grams of words; a shorter text is one n-gram of all its words."""
    found = words(text)
    return {tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1))} if found else set()


def decontaminate(
    rows: Iterable[Row], suites: Iterable[Row], n: int = 13, radius: int = 4, images: bool = True
) -> list[Match]:
    """Rows that share an n-gram of words, or a similar image, with an evaluation row.

    n-grams as in GPT-3's appendix C (arXiv:2005.14165), n = 13. Edge: a question of fewer than n words
    matches only if it is the whole of the other. Short questions are common for rows with images ("What is
    this?"), so there the images must be similar.
    """
    known: dict[tuple[str, ...], str] = {}
    index = HashIndex(radius)
    for row in suites:
        known.update((gram, row.id) for gram in ngrams(text_of(row), n))
        for medium in row.media if images else ():
            if value := image_hash(medium):
                index.add(value, row.id)
    matches = []
    for row in rows:
        shared = [
            gram for gram in ngrams(text_of(row), n) if gram in known and (len(gram) == n or not row.media)
        ]
        if shared:
            matches.append(Match(row.id, known[shared[0]], f"both say: {' '.join(shared[0])}"))
            continue
        near = [
            name
            for medium in (row.media if images else ())
            if (value := image_hash(medium))
            for name in index.near(value)
        ]
        if near:
            matches.append(Match(row.id, near[0], "an image looks the same"))
    return matches
