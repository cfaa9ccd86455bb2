"""Boxes and points: scorers of referring expressions and clicks, with the coordinate rules of each
harness."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL.Image import Image

from vlrl.eval.expressions import evaluate
from vlrl.eval.media import as_media
from vlrl.eval.scorer import Record, Scorer
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict
from vlrl.types import CoordinateSpace

_N = r"(-?\d+(?:\.\d+)?)"
_FOUR = rf"\s*{_N}\s*,\s*{_N}\s*,\s*{_N}\s*,\s*{_N}\s*"
_SQUARE = re.compile(rf"\[{_FOUR}\]")
_ROUND = re.compile(rf"[\[\(]{_FOUR}[\]\)]")
_POINT = re.compile(rf"[\[\(]\s*{_N}(%?)\s*(?:,|\s)\s*{_N}(%?)\s*[\]\)]")
Box = tuple[float, float, float, float]
Spaces = Sequence[CoordinateSpace]  # of the model's pictures; empty where the run recorded none


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes; 0 where the union is empty (the harnesses raise
    ZeroDivisionError there)."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def to_box(values: Iterable[float]) -> Box:
    """The first four numbers as a box."""
    a, b, c, d = itertools.islice(values, 4)
    return a, b, c, d


def _matched_box(match: re.Match[str] | None) -> Box | None:
    return to_box(float(value) for value in match.groups()) if match else None


def first_square(response: str) -> Box | None:
    """The first [a, b, c, d]."""
    return _matched_box(_SQUARE.search(response))


def first_bracketed(response: str) -> Box | None:
    """The first [a, b, c, d] or (a, b, c, d)."""
    return _matched_box(_ROUND.search(response))


def bracketed_or_numbers(response: str) -> Box | None:
    """The first four numbers in brackets, else the first four numbers of the response. VLMEvalKit."""
    box = first_bracketed(response)
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    return box or (to_box(float(n) for n in numbers) if len(numbers) >= 4 else None)


def unit_box(box: Box, size: tuple[float, float], spaces: Spaces) -> Box:
    """Coordinates are in 0-1 and stay unchanged."""
    return box


def per_mille_above_one(box: Box, size: tuple[float, float], spaces: Spaces) -> Box:
    """Coordinates are in 0-1000 where any is above 1, else in 0-1. ScreenSpot in lmms-eval."""
    return to_box(value / 1000 for value in box) if max(box) > 1 else box


def guessed(box: Box, size: tuple[float, float], spaces: Spaces) -> Box:
    """The unit follows from the largest coordinate: 0-1 up to 1.5, 0-1000 up to 1000, else pixels.
    VLMEvalKit.

    Edge: pixels of a picture of at most 1000 pixels are always misread.
    """
    if max(box) <= 1.5:
        return box
    if max(box) <= 1000:
        return to_box(value / 1000 for value in box)
    return to_box(value / size[i % 2] for i, value in enumerate(box))


def declared(box: Box, size: tuple[float, float], spaces: Spaces) -> Box:
    """Coordinates are in the units that the model family declares and the run recorded; in pixels of the
    original picture without them."""
    pixels = spaces[0].to_original(box) if spaces else box
    return to_box(value / size[i % 2] for i, value in enumerate(pixels))


FINDERS: dict[str, Callable[[str], Box | None]] = {
    "first_square": first_square,
    "first_bracketed": first_bracketed,
    "bracketed_or_numbers": bracketed_or_numbers,
}
UNITS: dict[str, Callable[[Box, tuple[float, float], Spaces], Box]] = {
    "unit": unit_box,
    "per_mille_above_one": per_mille_above_one,
    "guessed": guessed,
    "declared": declared,
}
Find = Literal["first_square", "first_bracketed", "bracketed_or_numbers"]
Unit = Literal["unit", "per_mille_above_one", "guessed", "declared"]


def size_of(record: Record, expression: str) -> tuple[float, float]:
    """(width, height) of the record's picture: from its fields, or by opening it. Raises ValueError where
    neither is possible."""
    value: Any = evaluate(expression, record) if expression else None
    if value is None:
        media = as_media(record.get("image"), record.get("_folder"), "image")
        if not media:
            raise ValueError(
                f"row {record.get('id')!r}: the size of its picture is not known; give `size` in the "
                "suite, or the picture in the row"
            )
        picture = media[0].load()
        assert isinstance(picture, Image)
        value = picture.size
    return float(value[0]), float(value[1])


def gold_box(record: Record, answer: str, layout: str, size: tuple[float, float]) -> Box:
    """The gold box as xyxy in 0-1. `layout` is "xywh" or "xyxy"; a box without a number above 1 is in 0-1
    already, others are in pixels."""
    a, b, c, d = (float(value) for value in evaluate(answer, record))
    box = (a, b, a + c, b + d) if layout == "xywh" else (a, b, c, d)
    return box if max(box) <= 1 else (box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1])


@dataclass(frozen=True)
class _Located(Scorer):
    """A scorer that reads a box or point from the response: `find` says how, `units` what its numbers
    mean."""

    answer: str = "row.bbox"
    layout: Literal["xywh", "xyxy"] = "xywh"
    size: str = ""
    find: Find = "first_square"
    units: Unit = "unit"

    def expected(self, record: Record) -> tuple[Box, tuple[float, float]]:
        """(gold box as xyxy in 0-1, picture size)."""
        size = size_of(record, self.size)
        return gold_box(record, self.answer, self.layout, size), size

    def found(self, response: Response, size: tuple[float, float]) -> Box | None:
        """The predicted box as xyxy in 0-1; None if there is none."""
        box = FINDERS[self.find](response.text)
        return UNITS[self.units](box, size, response.spaces) if box else None

    def pixel_boxes(self, gold: Box, box: Box | None, size: tuple[float, float]) -> dict[str, Any]:
        """Both boxes in original pixels, for the report page."""
        return {
            name: [value * size[i % 2] for i, value in enumerate(b)]
            for name, b in (("gold_box", gold), ("box", box))
            if b is not None
        }

    def demonstrations(self, record: Record) -> list[str]:
        box, size = self.expected(record)
        scale = size if self.units == "declared" else (1.0, 1.0)
        return ["[" + ", ".join(f"{value * scale[i % 2]:.6f}" for i, value in enumerate(box)) + "]"]


@register("referring")
@dataclass(frozen=True)
class Referring(_Located):
    """Referring expressions, ACC@0.5: score = [IoU(box, gold) >= correct_at].

    Paper: RefCOCO (arXiv:1608.00272). `find` and `units` say how the box is read. Edge: no box, or a box
    without area: 0. Only the first box of a response counts; the gold box never decides which one is read.
    """

    correct_at: float = 0.5

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        wanted, size = gold
        box = self.found(response, size)
        value = iou(box, wanted) if box else 0.0
        details = {**self.pixel_boxes(wanted, box, size), "iou": value}
        read = None if box is None else str(list(box))
        return self.scored(float(box is not None and value >= self.correct_at), read, self.find, details)


def centre(box: Sequence[float]) -> tuple[float, float]:
    """The centre of a box."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def first_point(response: str) -> tuple[float, float] | None:
    """The first (x, y) or [x, y] (with percent signs); else the centre of the first box; else x=..., y=...;
    else the first two numbers."""
    box = _ROUND.search(response)
    match = _POINT.search(response)
    if match and (not box or match.start() < box.start()):
        x, y = (float(v) / (100 if percent else 1) for v, percent in (match.group(1, 2), match.group(3, 4)))
        return x, y
    if box:
        return centre([float(value) for value in box.groups()])
    named = re.search(rf"x['\"]?\s*[:=]\s*{_N}.*?y['\"]?\s*[:=]\s*{_N}", response, re.IGNORECASE | re.DOTALL)
    numbers = list(named.groups()) if named else re.findall(r"-?\d+(?:\.\d+)?", response)
    return (float(numbers[0]), float(numbers[1])) if len(numbers) >= 2 else None


@register("point_in_box")
@dataclass(frozen=True)
class PointInBox(_Located):
    """GUI grounding: score = [the predicted point, or the centre of the predicted box, lies in the gold box],
    borders included.

    Paper: ScreenSpot (arXiv:2401.10935), ScreenSpot-Pro (arXiv:2504.07981). Edge: a response without a point
    is wrong and counted as a parse failure. With `units` "unit", a point with a number above 1 is divided by
    the picture's size (lmms-eval's ScreenSpot-Pro).
    """

    box_only: bool = False

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        wanted, size = gold
        if self.box_only:
            box = self.found(response, size)
            point = centre(box) if box else None
        else:
            point = self._point(first_point(response.text), size, response.spaces)
        hit = point is not None and wanted[0] <= point[0] <= wanted[2] and wanted[1] <= point[1] <= wanted[3]
        details = {
            **self.pixel_boxes(wanted, None, size),
            **({"point": [point[0] * size[0], point[1] * size[1]]} if point else {}),
        }
        return self.scored(float(hit), None if point is None else str(list(point)), "point", details)

    def _point(
        self, point: tuple[float, float] | None, size: tuple[float, float], spaces: Spaces
    ) -> tuple[float, float] | None:
        if point is None:
            return None
        if self.units == "unit":
            return (point[0] / size[0], point[1] / size[1]) if max(point) > 1 else point
        return UNITS[self.units]((*point, *point), size, spaces)[:2]
