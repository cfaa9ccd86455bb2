"""Boxes and points: referring expressions and clicks, with the coordinates read as each harness reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Fields, Mark, Scorer
from vlrl.registry import register
from vlrl.types import CoordinateSpace

_N = r"(-?\d+(?:\.\d+)?)"
_FOUR = rf"\s*{_N}\s*,\s*{_N}\s*,\s*{_N}\s*,\s*{_N}\s*"
_SQUARE = re.compile(rf"\[{_FOUR}\]")
_ROUND = re.compile(rf"[\[\(]{_FOUR}[\]\)]")
_POINT = re.compile(rf"[\[\(]\s*{_N}(%?)\s*(?:,|\s)\s*{_N}(%?)\s*[\]\)]")
Box = tuple[float, float, float, float]


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes; 0 where the union is empty (the harnesses divide by zero there)."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def _box(match: re.Match[str] | None) -> Box | None:
    return tuple(float(value) for value in match.groups()[:4]) if match else None  # type: ignore[return-value]


def first_square(response: str) -> Box | None:
    """The first [a, b, c, d]."""
    return _box(_SQUARE.search(response))


def first_bracketed(response: str) -> Box | None:
    """The first [a, b, c, d] or (a, b, c, d)."""
    return _box(_ROUND.search(response))


def bracketed_or_numbers(response: str) -> Box | None:
    """The first four numbers in brackets, else the first four of all. VLMEvalKit."""
    box = first_bracketed(response)
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    return box or (tuple(float(n) for n in numbers[:4]) if len(numbers) >= 4 else None)  # type: ignore[return-value]


def unit_box(box: Box, size: tuple[float, float], row: Fields) -> Box:
    """0-1 already."""
    return box


def per_mille_above_one(box: Box, size: tuple[float, float], row: Fields) -> Box:
    """0-1000 where any number is above 1, else 0-1. ScreenSpot in lmms-eval."""
    return tuple(value / 1000 for value in box) if max(box) > 1 else box  # type: ignore[return-value]


def guessed(box: Box, size: tuple[float, float], row: Fields) -> Box:
    """0-1 up to 1.5, 0-1000 up to 1000, else pixels. VLMEvalKit: pixels of a picture of at most 1000 are always misread."""
    if max(box) <= 1.5:
        return box
    if max(box) <= 1000:
        return tuple(value / 1000 for value in box)  # type: ignore[return-value]
    return tuple(value / size[i % 2] for i, value in enumerate(box))  # type: ignore[return-value]


def declared(box: Box, size: tuple[float, float], row: Fields) -> Box:
    """The policy's own units, as its family declares them and the run recorded them; pixels of the original picture without a record."""
    spaces = [CoordinateSpace((s[0], s[1]), (s[2], s[3]), s[4]) for s in row.get("_spaces") or ()]
    pixels = spaces[0].to_original(box) if spaces else box
    return tuple(value / size[i % 2] for i, value in enumerate(pixels))  # type: ignore[return-value]


FINDERS: dict[str, Callable[[str], Box | None]] = {
    "first_square": first_square,
    "first_bracketed": first_bracketed,
    "bracketed_or_numbers": bracketed_or_numbers,
}
UNITS: dict[str, Callable[[Box, tuple[float, float], Fields], Box]] = {
    "unit": unit_box,
    "per_mille_above_one": per_mille_above_one,
    "guessed": guessed,
    "declared": declared,
}
Find = Literal["first_square", "first_bracketed", "bracketed_or_numbers"]
Unit = Literal["unit", "per_mille_above_one", "guessed", "declared"]


def size_of(row: Fields, expression: str) -> tuple[float, float]:
    """(width, height) of the row's picture: from its fields, or by opening it. Raises ValueError."""
    value: Any = evaluate(expression, row) if expression else None
    if value is None:
        from vlrl.eval.media import as_media

        media = as_media(row.get("image"), row.get("_folder"), "image")
        if not media:
            raise ValueError(f"row {row.get('id')!r}: the size of its picture is not known; give `size` in the suite, or the picture in the row")
        value = media[0].load().size  # type: ignore[union-attr]
    return float(value[0]), float(value[1])


def gold_box(row: Fields, answer: str, layout: str, size: tuple[float, float]) -> Box:
    """The gold box as 0-1 xyxy. `layout` is "xywh" or "xyxy"; numbers up to 1 are 0-1 already."""
    a, b, c, d = (float(value) for value in evaluate(answer, row))
    box = (a, b, a + c, b + d) if layout == "xywh" else (a, b, c, d)
    return box if max(box) <= 1 else (box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1])


@dataclass(frozen=True)
class _Located(Scorer):
    answer: str = "row.bbox"
    layout: Literal["xywh", "xyxy"] = "xywh"
    size: str = ""
    find: Find = "first_square"
    units: Unit = "unit"

    def located(self, row: Fields, response: str) -> tuple[Box, Box | None, tuple[float, float]]:
        """(gold, predicted or None, size), boxes as 0-1 xyxy."""
        size = size_of(row, self.size)
        found = FINDERS[self.find](response)
        return gold_box(row, self.answer, self.layout, size), UNITS[self.units](found, size, row) if found else None, size

    def drawn(self, gold: Box, box: Box | None, size: tuple[float, float]) -> dict[str, Any]:
        """Both boxes in original pixels, for the page."""
        return {name: [value * size[i % 2] for i, value in enumerate(b)] for name, b in (("gold_box", gold), ("box", box)) if b is not None}

    def gold(self, row: Fields) -> list[str]:
        size = size_of(row, self.size)
        box = gold_box(row, self.answer, self.layout, size)
        scale = size if self.units == "declared" else (1.0, 1.0)
        return ["[" + ", ".join(f"{value * scale[i % 2]:.6f}" for i, value in enumerate(box)) + "]"]


@register("referring")
@dataclass(frozen=True)
class Referring(_Located):
    """score = [IoU(box, gold) >= threshold], the threshold included.

    Paper: RefCOCO (arXiv:1608.00272), ACC@0.5. `find` and `units` say how the box is read. Edge: no box, or a box without area: 0.
    One answer counts: the first; none is chosen by looking at the gold.
    """

    threshold: float = 0.5

    def __call__(self, row: Fields, response: str) -> Mark:
        gold, box, size = self.located(row, response)
        value = iou(box, gold) if box else 0.0
        return Mark(
            float(box is not None and value >= self.threshold),
            None if box is None else str(list(box)),
            self.find,
            self._details(gold, box, size, value),
        )

    def _details(self, gold: Box, box: Box | None, size: tuple[float, float], value: float) -> dict[str, Any]:
        return {**self.drawn(gold, box, size), "iou": value}


def centre(box: Sequence[float]) -> tuple[float, float]:
    """The middle of a box."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def first_point(response: str) -> tuple[float, float] | None:
    """The first (x, y) or [x, y], percent signs read; else the centre of the first box; else x=..., y=...; else the first two numbers."""
    box = _ROUND.search(response)
    match = _POINT.search(response)
    if match and (not box or match.start() < box.start()):
        return tuple(float(v) / (100 if percent else 1) for v, percent in (match.group(1, 2), match.group(3, 4)))  # type: ignore[return-value]
    if box:
        return centre([float(value) for value in box.groups()])
    named = re.search(rf"x['\"]?\s*[:=]\s*{_N}.*?y['\"]?\s*[:=]\s*{_N}", response, re.IGNORECASE | re.DOTALL)
    numbers = list(named.groups()) if named else re.findall(r"-?\d+(?:\.\d+)?", response)
    return (float(numbers[0]), float(numbers[1])) if len(numbers) >= 2 else None


@register("point_in_box")
@dataclass(frozen=True)
class PointInBox(_Located):
    """score = [the point, or the centre of the box, lies in the gold box], borders included.

    Paper: ScreenSpot (arXiv:2401.10935), ScreenSpot-Pro (arXiv:2504.07981). Edge: no point is wrong and counted as a parse failure.
    `units` "unit" divides by the picture's size once a number is above 1 (lmms-eval's ScreenSpot-Pro).
    """

    box_only: bool = False

    def __call__(self, row: Fields, response: str) -> Mark:
        size = size_of(row, self.size)
        gold = gold_box(row, self.answer, self.layout, size)
        if self.box_only:
            found = FINDERS[self.find](response)
            point = centre(UNITS[self.units](found, size, row)) if found else None
        else:
            point = self._point(first_point(response), size, row)
        hit = point is not None and gold[0] <= point[0] <= gold[2] and gold[1] <= point[1] <= gold[3]
        details = {**self.drawn(gold, None, size), **({"point": [point[0] * size[0], point[1] * size[1]]} if point else {})}
        return Mark(float(hit), None if point is None else str(list(point)), "point", details)

    def _point(self, point: tuple[float, float] | None, size: tuple[float, float], row: Fields) -> tuple[float, float] | None:
        if point is None:
            return None
        if self.units == "unit":
            return (point[0] / size[0], point[1] / size[1]) if max(point) > 1 else point
        return UNITS[self.units]((*point, *point), size, row)[:2]
