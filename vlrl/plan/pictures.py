"""How many tokens a picture becomes: the processors' rules as arithmetic on sizes, checked against the
processors themselves in the tests.

resize  Qwen-VL: sides to multiples of `unit`, the area between min_pixels and max_pixels; one token per
unit^2 (Qwen2-VL, arXiv:2409.12191, sec. 2.1) fixed   Gemma 3: one square, a fixed number of tokens
tiles   InternVL: 1 to 12 squares in the grid whose proportions are nearest, and a thumbnail (InternVL 1.5,
arXiv:2404.16821, sec. 3.3) anyres  LLaVA-OneVision: the grid of at most 6 x 6 squares that wastes least,
without padding, at most 9 squares of tokens, and the whole picture split   SmolVLM: the long side at most 4
squares, tiles of one square, and the whole picture
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seen:
    """What a picture costs: `tokens` in the language model, `patches` rows of the vision tower, `largest`
    patches that attend to each other."""

    tokens: int
    patches: int
    largest: int


NONE = Seen(0, 0, 0)


def seen(rule: Mapping[str, Any], width: int, height: int) -> Seen:
    """The cost of a picture of `width` x `height` pixels under a release's `pictures` entry; nothing for a
    model without one."""
    return RULES[rule["rule"]](rule, width, height) if rule else NONE


def resized(width: int, height: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """(width, height) in multiples of `unit` whose product lies between `least` and `most` pixels,
    proportions nearly kept.

    Example: 1024 x 768 with unit 28 and no bound in reach: 1036 x 756.
    """
    wide, high = max(unit, round(width / unit) * unit), max(unit, round(height / unit) * unit)
    if wide * high > most:
        shrink = math.sqrt(width * height / most)
        return max(unit, math.floor(width / shrink / unit) * unit), max(
            unit, math.floor(height / shrink / unit) * unit
        )
    if wide * high < least:
        grow = math.sqrt(least / (width * height))
        return math.ceil(width * grow / unit) * unit, math.ceil(height * grow / unit) * unit
    return wide, high


def _resize(rule: Mapping[str, Any], width: int, height: int) -> Seen:
    wide, high = resized(width, height, rule["unit"], rule["min_pixels"], rule["max_pixels"])
    patches = (wide // rule["patch"]) * (high // rule["patch"])
    return Seen(patches * rule["patch"] ** 2 // rule["unit"] ** 2, patches, patches)


def _fixed(rule: Mapping[str, Any], width: int, height: int) -> Seen:
    patches = (rule["side"] // rule["patch"]) ** 2
    return Seen(rule["tokens"], patches, patches)


def nearest_grid(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """(columns, rows) with `least` to `most` squares whose proportions are nearest to the picture's; of equal
    ones the largest that the picture fills at least by half."""
    squares = {
        (c, r)
        for n in range(least, most + 1)
        for c in range(1, n + 1)
        for r in range(1, n + 1)
        if least <= c * r <= most
    }
    grids = sorted(squares, key=lambda grid: grid[0] * grid[1])
    best, difference = (1, 1), math.inf
    for columns, rows in grids:
        off = abs(width / height - columns / rows)
        if off < difference or (off == difference and width * height > 0.5 * side * side * columns * rows):
            best, difference = (columns, rows), off
    return best


def _tiles(rule: Mapping[str, Any], width: int, height: int) -> Seen:
    columns, rows = nearest_grid(width, height, rule["side"], rule["least"], rule["most"])
    tiles = columns * rows + (1 if columns * rows > 1 else 0)
    patches = (rule["side"] // rule["patch"]) ** 2 + rule["extra"]
    return Seen(tiles * rule["tokens"] + 2, tiles * patches, patches)  # and the marks around the picture


def _anyres(rule: Mapping[str, Any], width: int, height: int) -> Seen:
    side, most = rule["side"], rule["most"]
    grids = [(side * c, side * r) for r in range(1, most + 1) for c in range(1, most + 1)]

    def worth(grid: tuple[int, int]) -> tuple[int, int]:
        scale = min(grid[0] / width, grid[1] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, -(grid[0] * grid[1] - used)

    wide, high = max(grids, key=worth)
    edge = side // rule["patch"]
    columns, rows = edge * wide // side, edge * high // side
    if width / height > columns / rows:
        pad = (rows - int(round(height * (columns / width), 7))) // 2
        rows -= 2 * pad
    else:
        pad = (columns - int(round(width * (rows / height), 7))) // 2
        columns -= 2 * pad
    shrink = math.sqrt(rows * columns / (9 * edge * edge))
    if shrink > 1.1:
        rows, columns = int(rows // shrink), int(columns // shrink)
    tiles = (wide // side) * (high // side) + 1
    return Seen(rows * columns + rows + edge * edge, tiles * edge * edge, edge * edge)


def _split(rule: Mapping[str, Any], width: int, height: int) -> Seen:
    side, longest = rule["side"], rule["longest"]
    scale = longest / max(width, height)
    wide, high = (longest, int(height * scale)) if width >= height else (int(width * scale), longest)
    wide, high = wide + wide % 2, high + high % 2
    columns, rows = math.ceil(wide / side), math.ceil(high / side)
    tiles = columns * rows + 1 if columns * rows > 1 else 1
    patches = (side // rule["patch"]) ** 2
    return Seen(tiles * rule["tokens"], tiles * patches, patches)


RULES = {"resize": _resize, "fixed": _fixed, "tiles": _tiles, "anyres": _anyres, "split": _split}
