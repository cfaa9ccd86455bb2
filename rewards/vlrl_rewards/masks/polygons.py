"""Rewards for polygons and rotated boxes: IoU of the areas (shapely)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shapely.geometry import Polygon
from shapely.geometry.base import BaseGeometry
from shapely.validation import explain_validity

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import CoordinateSpace, Row
from vlrl_rewards.boxes.reading import point_to_original
from vlrl_rewards.boxes.unbracketed import are_corners
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values, is_number, repeated_in

MAX_CORNERS = 500
_KEYS = ("polygon", "segmentation", "points", "corners", "rbox", "rotated_box", "obb", "bbox_2d", "bbox")


def rotated_corners(
    cx: float, cy: float, width: float, height: float, degrees: float
) -> list[tuple[float, float]]:
    """The four corners of a box of `width` x `height` around (cx, cy), rotated by `degrees` from x towards y
    (clockwise on the screen)."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    half = (
        (-width / 2, -height / 2),
        (width / 2, -height / 2),
        (width / 2, height / 2),
        (-width / 2, height / 2),
    )
    return [(cx + x * cos - y * sin, cy + x * sin + y * cos) for x, y in half]


def corners_of(value: Any) -> list[tuple[float, float]] | None:
    """The corners of [[x, y], ...], [x1, y1, x2, y2, x3, y3, ...], [cx, cy, w, h, degrees], or of a mapping
    with one of these; None for others.

    A shape has 3 to `MAX_CORNERS` (500) corners.
    """
    if isinstance(value, Mapping):
        lower = {str(k).lower(): v for k, v in value.items()}
        return next((c for key in _KEYS if key in lower and (c := corners_of(lower[key]))), None)
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if len(value) == 1 and isinstance(value[0], (list, tuple, Mapping)):
        return corners_of(value[0])
    if all(isinstance(v, (list, tuple)) and len(v) == 2 and all(map(is_number, v)) for v in value):
        points = [(float(x), float(y)) for x, y in value]
    elif all(map(is_number, value)):
        flat = [float(v) for v in value]
        points = (
            (rotated_corners(*flat) if min(flat[2:4]) > 0 else [])
            if len(flat) == 5
            else list(zip(flat[::2], flat[1::2], strict=True))
            if len(flat) % 2 == 0
            else []
        )
    else:
        return None
    return points if 3 <= len(points) <= MAX_CORNERS else None


def beyond_corners(value: Any) -> str:
    """Why a shape has more corners than are read; "" if none has."""
    if isinstance(value, Mapping):
        return next(filter(None, map(beyond_corners, value.values())), "")
    if not isinstance(value, (list, tuple)):
        return ""
    pairs = sum(isinstance(v, (list, tuple)) and len(v) == 2 and all(map(is_number, v)) for v in value)
    if pairs > MAX_CORNERS or sum(map(is_number, value)) > 2 * MAX_CORNERS:
        return f"a shape has more than {MAX_CORNERS} corners and is not read"
    return next(filter(None, map(beyond_corners, value)), "")


def named_shapes(value: Any) -> list[list[tuple[float, float]]]:
    """The different shapes that a value names: one, or one for each key of a mapping ("polygon",
    "segmentation" ...) that has another."""
    if not isinstance(value, Mapping):
        corners = corners_of(value)
        return [corners] if corners else []
    found: list[list[tuple[float, float]]] = []
    for key, member in [*value.items(), *repeated_in(value)]:
        corners = corners_of(member) if str(key).lower() in _KEYS or isinstance(member, Mapping) else None
        if corners and corners not in found:
            found.append(corners)
    return found


def shapes_in(text: str) -> list[list[tuple[float, float]]]:
    """The corners of each shape in a text; "(0, 0), (9, 0), (9, 9)" is one shape."""
    values = find_values(text)
    found = [corners for value in values for corners in named_shapes(value.value)]
    if found or len(values) < 3 or not all(are_corners(text, a.end, b.start) for a, b in pairwise(values)):
        return found
    corners = corners_of([value.value for value in values])
    return [corners] if corners else []


def polygon(corners: Sequence[tuple[float, float]]) -> Polygon | None:
    """The polygon of the corners; None if they enclose no area or the outline crosses itself."""
    shape = Polygon(corners)
    return shape if shape.is_valid and shape.area > 0 else None


def area_iou(a: BaseGeometry, b: BaseGeometry) -> float:
    """|a & b| / |a | b| in [0, 1]."""
    overlap = a.intersection(b).area
    return min(1.0, max(0.0, overlap / (a.area + b.area - overlap)))


def _converted(
    corners: Sequence[tuple[float, float]], spaces: Sequence[CoordinateSpace], picture: int
) -> list[tuple[float, float]]:
    """The corners in original pixels."""
    return [point_to_original(c, spaces, picture) for c in corners]


@verifier("polygon")
@register("polygon")
@dataclass(frozen=True, kw_only=True)
class PolygonReward(Graded):
    """Polygon IoU: overlap of the predicted polygon or rotated box P with the gold area G.

        r = |P & G| / |P | G|
        r = 1[IoU >= correct_at]   (with `binary`)

    Paper: IoU of rotated boxes as in DOTA, arXiv:1711.10398, sec. 5 (IoU); as a reward: vlrl original.
    Formats: [[x, y], ...], [x1, y1, x2, y2, x3, y3, ...], [cx, cy, w, h, degrees] (clockwise on the screen),
    {"polygon": ...}. A rotated box is rotated in the policy's units and converted corner by corner, which is
    exact for images resized with another aspect ratio. Edge: fewer than 3 corners, no area, an outline that
    crosses itself, several shapes: 0. Range [0, 1]. Units: gold in original pixels.
    """

    binary: bool = False
    correct_at: float = 0.5
    picture: int = 0

    def target(self, gold: Any, row: Row) -> Polygon:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        corners = corners_of(values[0]) if len(values) == 1 else None
        shape = polygon(corners) if corners else None
        if shape is None:
            why = explain_validity(Polygon(corners)) if corners else "fewer than three corners"
            raise GoldError(
                f"answer: the gold polygon {gold!r:.200} has no valid area ({why}); give [[x, y], ...] or "
                "[cx, cy, w, h, degrees]"
            )
        return shape

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        found = shapes_in(answer.text)
        if len(found) != 1:
            limit = next(
                filter(None, (beyond_corners(value.value) for value in find_values(answer.text))), ""
            )
            raise Unread("several polygons", answer) if found else unreadable("polygon", answer, limit)
        shape = polygon(_converted(found[0], response.spaces, row.meta.get("picture", self.picture)))
        if shape is None:
            return self.wrong(answer, "the outline encloses no area, or crosses itself")
        iou = area_iou(shape, target)
        return self.scored(
            answer,
            float(iou >= self.correct_at) if self.binary else iou,
            iou >= self.correct_at,
            f"IoU {iou:.3f}",
        )


@verifier("rotated_box")
@register("rotated_box")
@dataclass(frozen=True, kw_only=True)
class RotatedBox(PolygonReward):
    """Rotated-box IoU with a factor for the direction of the box.

        r = IoU x |cos 2(a - a*)|^sharpness,  a, a* the directions of the long sides; sharpness 0 is the plain
        IoU

    Paper: vlrl original; IoU as in DOTA, arXiv:1711.10398. The factor lowers the score of squares and
    near-squares that overlap well but have another direction. Edge: as `polygon`; a box is [cx, cy, w, h,
    degrees] or four corners. Range [0, 1].
    """

    sharpness: float = 0.0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        plain = super().grade(response, gold, row)
        corners = shapes_in(self.committed(response).text)[0]
        if plain.score == 0 or len(corners) != 4:
            reason = plain.reason if plain.score == 0 else "not a rotated box: needs four corners"
            return replace(plain, score=self.lowest(), correct=False, reason=reason)
        mine = _converted(corners, response.spaces, row.meta.get("picture", self.picture))
        turn = direction(mine) - direction(list(self.target(gold, row).exterior.coords)[:-1])
        return replace(plain, score=plain.score * abs(math.cos(2 * turn)) ** self.sharpness)


def direction(corners: Sequence[tuple[float, float]]) -> float:
    """Direction of the longer of the first two sides, in radians."""
    sides = [(b[0] - a[0], b[1] - a[1]) for a, b in (corners[:2], corners[1:3])]
    x, y = max(sides, key=lambda s: math.hypot(*s))
    return math.atan2(y, x)
