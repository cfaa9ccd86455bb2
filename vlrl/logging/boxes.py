"""Boxes, points, polygons and masks that the report draws on an image: the gold ones of a row and those in a
completion. Nothing is scored here."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from PIL import Image

from vlrl.types import CoordinateSpace, Rollout

log = logging.getLogger("vlrl")

_NUMBER = r"-?\d{1,7}(?:\.\d{1,7})?"
_NUMBERS = re.compile(
    rf"[\[(]\s*({_NUMBER}(?:\s*,\s*{_NUMBER})+)\s*[\])]", re.ASCII
)  # ASCII: \d and \s know more than float() does
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_LABELS = ("label", "category", "name", "class")
_OUTLINES = ("segmentation", "segment", "polygon", "polygons", "outline", "mask")  # keys of polygons
MAX_MARKS = 50
MAX_PIXELS = 4096 * 4096  # of a mask
MASK_SIDE = 256  # pixels of the longer side of a drawn mask
MASK_COLOURS = {"gold": (16, 160, 90), "said": (240, 110, 20)}


def gold_marks(answer: Any) -> list[dict[str, Any]]:
    """Marks of a gold answer, as {"xy": [...], "label": str}, or {"rle": {...}, "label": str}, in original
    pixels.

    A mark is a list of four numbers (a box) or two (a point), bare, in a list, or under any key of a mapping;
    a longer list under a key such as `segmentation` (a polygon: x1, y1, x2, y2, ...); or a mapping with
    `counts` and `size` (COCO's mask).
    """
    return list(_find(answer, ""))[:MAX_MARKS]


def _find(value: Any, label: str, outline: bool = False) -> Iterator[dict[str, Any]]:
    if isinstance(value, Mapping):
        own = next((str(value[key]) for key in _LABELS if isinstance(value.get(key), str)), label)
        if "counts" in value and "size" in value:
            yield {"rle": {"counts": value["counts"], "size": value["size"]}, "label": own}
            return
        for key, item in value.items():
            yield from _find(item, own, outline or key in _OUTLINES)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if value and all(isinstance(number, Real) and not isinstance(number, bool) for number in value):
            numbers = [float(number) for number in value]
            if is_mark(numbers) or (outline and is_polygon(numbers)):
                yield {"xy": numbers, "label": label}
        else:
            for item in value:
                yield from _find(item, label, outline)


def is_mark(numbers: Sequence[float]) -> bool:
    """Whether numbers can be a box (x1 < x2, y1 < y2) or a point, and not the order of two or four puzzle
    pieces."""
    count = len(numbers)
    if sorted(numbers) in (list(range(count)), list(range(1, count + 1))):
        return False
    return count == 2 or (count == 4 and numbers[0] < numbers[2] and numbers[1] < numbers[3])


def is_polygon(numbers: Sequence[float]) -> bool:
    """Whether numbers can be x1, y1, x2, y2, ... of at least three corners."""
    return len(numbers) >= 6 and len(numbers) % 2 == 0


def drawn_mask(rle: Mapping[str, Any], kind: str) -> str | None:
    """COCO's mask as a picture (data URI) to lay over the image, in the colour of `kind` ("gold" or "said");
    None for one that is broken or too large."""
    try:
        height, width = (int(side) for side in rle["size"])
        counts = rle["counts"]
        runs = _runs_of(counts) if isinstance(counts, str) else [int(count) for count in counts]
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        log.debug("a mask cannot be drawn: %s", error)
        return None
    if not 0 < height * width <= MAX_PIXELS or min(runs, default=0) < 0 or sum(runs) != height * width:
        return None
    bits: Any = np.repeat(np.arange(len(runs)) % 2, runs)  # runs of 0 and 1 in turn, column by column
    inside = bits.reshape(width, height).T
    step = max(1, -(-max(height, width) // MASK_SIDE))
    small = inside[::step, ::step]
    pixels = np.zeros((*small.shape, 4), dtype=np.uint8)
    pixels[small > 0] = (*MASK_COLOURS[kind], 255)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _runs_of(text: str) -> list[int]:
    """The run lengths in COCO's compressed string: five bits a character, the lowest first; from the third
    run on, the difference from the run before the last. Raises IndexError for a torn text."""
    runs: list[int] = []
    place = 0
    while place < len(text):
        value, shift, more = 0, 0, True
        while more:
            bits = ord(text[place]) - 48
            value |= (bits & 31) << shift
            shift, more, place = shift + 5, bool(bits & 32), place + 1
            if shift > 40:
                raise ValueError("a run of more than 40 bits")
        value -= (1 << shift) if bits & 16 else 0
        runs.append(value + runs[-2] if len(runs) > 2 else value)
    return runs


def predicted_marks(rollout: Rollout, gold: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Marks in a completion, in original pixels: `[x1, y1, x2, y2]`, `(x, y)` or a polygon inside `<answer>`,
    or anywhere if it has no answer tag; masks where the answer is JSON.

    Only marks of the kinds that `gold` has are looked for. A reward may put its own reading into
    `rollout.info["marks"]`.
    """
    if "marks" in rollout.info:
        return list(rollout.info["marks"])[:MAX_MARKS]
    sizes = {min(len(mark["xy"]), 6) for mark in gold if "xy" in mark}
    answers = _ANSWER.findall(rollout.text)
    text = answers[-1] if answers else rollout.text
    found = _masks_of(text) if any("rle" in mark for mark in gold) else []
    space = rollout.spaces[0] if rollout.spaces else CoordinateSpace((1, 1), (1, 1), "original")
    for match in _NUMBERS.finditer(text) if sizes else ():
        numbers = [float(number) for number in re.findall(_NUMBER, match.group(1), re.ASCII)]
        fits = len(numbers) in sizes - {6} or (6 in sizes and is_polygon(numbers))
        if fits and len(found) < MAX_MARKS:
            found.append({"xy": [round(value, 2) for value in space.to_original(numbers)], "label": ""})
    return found


def _masks_of(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [mark for mark in gold_marks(value) if "rle" in mark]
