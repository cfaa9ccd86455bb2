"""Mask reward: COCO run-length codes and polygons as pixel masks, compared by mask IoU (pycocotools)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as _coco

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.reading import to_original
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values, is_number, repeated_in
from vlrl_rewards.masks.polygons import beyond_corners, corners_of, named_shapes

MAX_PIXELS = 64_000_000
MAX_POLYGONS = 100
_RLE_TEXT = re.compile(r"[0-o]{1,20000}")
Rle = dict[str, Any]
coco: Any = _coco  # the stubs declare arrays where the functions take and return dictionaries


def whole_numbers(value: Any) -> list[int] | None:
    """A list of integers (2 or 2.0, but not 2.5) as ints; None for any other value."""
    if not isinstance(value, (list, tuple)) or not all(is_number(v) and v == int(v) for v in value):
        return None
    return [int(v) for v in value]


def mask_of(counts: Sequence[int], height: int, width: int) -> Rle:
    """A compressed mask from plain run lengths (column-major, background first). Raises ValueError unless the
    runs sum to height x width."""
    if (
        height * width > MAX_PIXELS
        or min(height, width) < 1
        or sum(counts) != height * width
        or min(counts) < 0
    ):
        raise ValueError(
            f"mask: the runs sum to {sum(counts)} instead of {height} x {width}, one is negative, or the "
            "mask is too large"
        )
    return coco.frPyObjects({"counts": [int(c) for c in counts], "size": [height, width]}, height, width)


def encode(array_HW: np.ndarray) -> Rle:
    """A compressed mask from an (H, W) array of 0 and 1."""
    return coco.encode(np.asfortranarray(array_HW.astype(np.uint8)))


def code_pixels(counts: str) -> int:
    """Number of pixels that a compressed COCO run-length string covers. Raises ValueError if it is broken;
    the decoder would crash on it."""
    runs: list[int] = []
    value = shift = 0
    for char in counts:
        bits = ord(char) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            if shift > 45:
                raise ValueError("mask: a run is too long")
            continue
        if bits & 0x10:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        if runs[-1] < 0:
            raise ValueError("mask: a run is negative")
        value = shift = 0
    if shift:
        raise ValueError("mask: the code ends in the middle of a run")
    return sum(runs)


def read_mask(
    value: Any, height: int, width: int, spaces: Sequence[Any] = (), picture: int = 0
) -> Rle | None:
    """A compressed mask of height x width pixels; None if `value` is broken.

    value: {"counts": run lengths or compressed string, "size": [h, w]}, or a polygon (or several) in the
    policy's units, which `spaces` and `picture` convert to original pixels.
    Limits: 100 polygons of 500 corners, 20,000 characters of a compressed string, 64 million pixels.
    """
    if isinstance(value, Mapping) and "counts" in value:
        if whole_numbers(value.get("size", [height, width])) != [height, width]:
            return None
        counts = value["counts"]
        try:
            if isinstance(counts, (str, bytes)):
                text = counts.decode("ascii", "replace") if isinstance(counts, bytes) else counts
                if not _RLE_TEXT.fullmatch(text) or code_pixels(text) != height * width:
                    return None
                return {"size": [height, width], "counts": text.encode("ascii")}
            runs = whole_numbers(counts)
            return mask_of(runs, height, width) if runs else None
        except ValueError:
            return None
    parts = value if isinstance(value, list) and value and corners_of(value) is None else [value]
    rings = [corners_of(part) for part in parts]
    if not rings or len(rings) > MAX_POLYGONS or not all(rings):
        return None
    flat = [[v for c in ring or () for v in to_original(c, spaces, picture)] for ring in rings]
    flat = [[min(max(v, -1.0), float(max(height, width)) + 1) for v in ring] for ring in flat]
    return coco.merge(coco.frPyObjects(flat, height, width))


def parts_of(value: Any) -> list[Any]:
    """What an answer's value names as masks: the value, or every code and shape of a mapping, also those
    under other or repeated keys."""
    if not isinstance(value, Mapping):
        return [value]
    other = {key: part for key, part in value.items() if key not in ("counts", "size")}
    codes = (
        [value, *({**value, key: part} for key, part in repeated_in(value) if key == "counts")]
        if "counts" in value
        else []
    )
    return (
        codes
        + [part for part in other.values() if isinstance(part, Mapping) and "counts" in part]
        + named_shapes(other)
    )


def beyond_limits(value: Any) -> str:
    """Why a value has more polygons or corners than are read; "" if it is within the limits."""
    if (
        isinstance(value, list)
        and len(value) > MAX_POLYGONS
        and all(isinstance(part, (list, Mapping)) and corners_of(part) for part in value)
    ):
        return f"the answer has more than {MAX_POLYGONS} polygons, which are not read"
    return beyond_corners(value)


def mask_iou(a: Rle, b: Rle) -> float:
    """|a & b| / |a | b| in [0, 1]; two empty masks give 0."""
    if coco.area(a) == 0 and coco.area(b) == 0:
        return 0.0
    return float(coco.iou([a], [b], [0])[0, 0])


@verifier("mask")
@register("mask")
@dataclass(frozen=True, kw_only=True)
class MaskReward(Graded):
    """Mask IoU of the predicted mask M and the gold mask G.

        r = |M & G| / |M | G|
        r = 1[IoU >= correct_at]   (with `binary`)

    Paper: mask IoU as in COCO, arXiv:1405.0312; as a reward: vlrl original. Gold: {"counts": ..., "size": [h,
    w]} in COCO form, an (H, W) array, or a polygon with `row.meta["size"] = (width, height)`. Answer: run
    lengths of the same size, or polygons in the policy's units. A box [x1, y1, x2, y2] is not a mask, because
    it has two corners. Edge: a broken code, run lengths that are not integers, another size, an empty mask:
    0. Range [0, 1]. Units: original pixels.
    """

    binary: bool = False
    correct_at: float = 0.5
    picture: int = 0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if isinstance(gold, np.ndarray) and gold.ndim == 2:
            rle: Rle | None = encode(gold > 0)
        else:
            declared = whole_numbers(gold.get("size")) if isinstance(gold, Mapping) else None
            size = declared or (whole_numbers(row.meta.get("size")) or [])[::-1]
            rle = read_mask(gold, size[0], size[1]) if len(size) == 2 else None
        if rle is None or coco.area(rle) == 0:
            raise GoldError(
                f"answer: the gold mask {gold!r:.200} is broken or empty; give COCO run lengths, an array, "
                "or a polygon with meta.size"
            )
        answer = self.committed(response)
        height, width = rle["size"]
        found = [f.value for f in find_values(answer.text)]
        picture = row.meta.get("picture", self.picture)
        masks = [
            m
            for value in found
            for part in parts_of(value)
            for m in [read_mask(part, int(height), int(width), response.spaces, picture)]
            if m
        ]
        if len(masks) != 1:
            limit = next(filter(None, map(beyond_limits, found)), "")
            raise Unread("several masks", answer) if masks else unreadable("mask", answer, limit)
        iou = mask_iou(masks[0], rle)
        return self.scored(
            answer,
            float(iou >= self.correct_at) if self.binary else iou,
            iou >= self.correct_at,
            f"IoU {iou:.3f}",
        )
