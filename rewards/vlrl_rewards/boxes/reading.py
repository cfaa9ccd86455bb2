"""Parser of boxes and points in an answer, and the conversion of the policy's coordinates to original pixels.

Formats: JSON and Python literals (`[x1, y1, x2, y2]`, lists of them, `{"bbox_2d": [...], "label": ...}`,
`{'Position': ..., 'Confidence': ...}`, `{"dog": [...]}`), `(x1,y1),(x2,y2)`, `<box>...</box>`,
`<|box_start|>...<|box_end|>`, `<point x="" y="">`, `x1=1, y1=2, ...`, and a text that consists of four (for a
point: two) bare numbers.
Limits: `MAX_CHARS` (20,000) characters a text and `MAX_ITEMS` (1,000) boxes or points; beyond them an answer
holds none (None).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.plugins.scoring import GoldError
from vlrl.types import CoordinateSpace
from vlrl_rewards.boxes.unbracketed import (
    CORNER_NAMES,
    Quad,
    are_corners,
    bare_numbers,
    label_before,
    named_corners,
    named_points,
)
from vlrl_rewards.literals import MAX_CHARS, Found, find_values, is_number, repeated_in

MAX_ITEMS = 1000
_BOX_KEYS = (
    "bbox_2d",
    "bbox",
    "bounding_box",
    "boundingbox",
    "box",
    "box_2d",
    "position",
    "coordinates",
    "coordinate",
    "coords",
    "rect",
    "region",
)
_SIZE_KEYS = (("x", "y", "width", "height"), ("x", "y", "w", "h"))
_PAIR_KEYS = (("top_left", "bottom_right"), ("topleft", "bottomright"), ("upper_left", "lower_right"))
_POINT_KEYS = ("point_2d", "point", "click", "click_point", "coordinate", "coordinates", "center", "position")
_LABEL_KEYS = ("label", "category", "class", "name", "category_name", "object", "id")
_SCORE_KEYS = ("confidence", "score", "conf", "probability")
_CONTAINER_KEYS = frozenset(
    (
        *_BOX_KEYS,
        *_SCORE_KEYS,
        "objects",
        "boxes",
        "bboxes",
        "detections",
        "predictions",
        "answer",
        "results",
        "annotations",
        "instances",
    )
)
# Keys under which a mapping with a box (or point) names no second one: other shapes, colours, sizes, times.
_NO_SECOND_BOX = frozenset(
    (*_BOX_KEYS, *_SCORE_KEYS, *_LABEL_KEYS, *_POINT_KEYS)
    + ("points", "corners", "polygon", "segmentation", "mask", "keypoints", "color", "colour", "rgb", "rgba")
)
_NO_POINT_KEY = re.compile(
    r"size|resolution|dimension|width|height|scale|time|range|span|shape|index|grid|colou?r"
)
_OPEN_TAG = re.compile(r"<\|?(?:box|bbox|bbox_2d|box_start|point|click)\|?>", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</(?:box|bbox|bbox_2d|point|click)>|<\|(?:box|point)_end\|>", re.IGNORECASE)
_BLANKED = re.compile(r"(?<=[0-9])\s?(?:px|pixels?)\b|\\(?:left|right)\b", re.IGNORECASE)
_NONE = re.compile(
    r"(?:none|null|nothing|empty|n/a|no|\[\s{0,9}\]|\{\s{0,9}\}"
    r"|there (?:is|are) (?:none|nothing)|(?:there (?:is|are) )?no(?:ne)?(?: such)?"
    r" (?:objects?|boxe?s?|match(?:es)?|targets?|instances?|labels?|relations?"
    r"|relationships?|triples?|points?|masks?|items?|regions?)(?: "
    r"(?:found|detected|present|visible|here|shown))?)[.!]?",
    re.IGNORECASE,
)
_STATEMENT_END = re.compile(r"\n|[.;!?]\s")


@dataclass(frozen=True)
class Box:
    """A box (x1, y1, x2, y2) with its label and stated confidence. `start`: its character offset in the text,
    which tells statements apart."""

    xyxy: Quad
    label: str = ""
    score: float | None = None
    start: int = 0


@dataclass(frozen=True)
class Point:
    """A point (x, y). `start`: its character offset in the text."""

    xy: tuple[float, float]
    label: str = ""
    start: int = 0


# --- coordinates --------------------------------------------------------------------------------------------


def to_original(
    xy: Sequence[float], spaces: Sequence[CoordinateSpace], picture: int = 0
) -> tuple[float, ...]:
    """Convert (x, y, x, y, ...) from the policy's units to original pixels of image number `picture`.

    Without `spaces` the values are taken as original pixels. Raises ValueError if there is no such image.
    """
    if not spaces:
        return tuple(float(value) for value in xy)
    if not 0 <= picture < len(spaces):
        raise ValueError(
            f"picture: there is no image {picture}, the prompt has {len(spaces)}; numbering counts from 0"
        )
    return spaces[picture].to_original(xy)


def box_to_original(xyxy: Quad, spaces: Sequence[CoordinateSpace], picture: int = 0) -> Quad:
    """A box in the policy's units, in original pixels; as `to_original`."""
    x1, y1, x2, y2 = to_original(xyxy, spaces, picture)
    return x1, y1, x2, y2


def point_to_original(
    xy: Sequence[float], spaces: Sequence[CoordinateSpace], picture: int = 0
) -> tuple[float, float]:
    """A point in the policy's units, in original pixels; as `to_original`."""
    x, y = to_original(xy, spaces, picture)
    return x, y


def read_boxes(
    text: str, spaces: Sequence[CoordinateSpace] = (), picture: int = 0, layout: str = "xyxy"
) -> list[Box] | None:
    """The boxes of an answer in original pixels: [] if it says that there are none ("None", "[]"), None if it
    contains no box."""
    boxes = parse_boxes(text, layout)
    return (
        boxes
        if not boxes or not spaces
        else [replace(box, xyxy=box_to_original(box.xyxy, spaces, picture)) for box in boxes]
    )


def read_points(text: str, spaces: Sequence[CoordinateSpace] = (), picture: int = 0) -> list[Point] | None:
    """The points of an answer in original pixels; [] and None as in `read_boxes`."""
    points = parse_points(text)
    return (
        points
        if not points or not spaces
        else [replace(point, xy=point_to_original(point.xy, spaces, picture)) for point in points]
    )


# --- parsing ------------------------------------------------------------------------------------------------


def parse_boxes(text: str, layout: str = "xyxy") -> list[Box] | None:
    """The boxes of an answer in the units and the order in which they are written.

    A mapping that names different boxes under several keys ("bbox", "box_2d", "other") gives all of them.
    layout: the order of a list of four numbers: xyxy, xywh, cxcywh or yxyx; named sides ("x1", "left",
    "width") override it. Returns None if no box is found, and [] if the answer says that there are none.
    """
    reorder = layout_of(layout)
    prepared, values = _prepare(text)
    boxes: list[Box] = []
    for found in values:
        boxes.extend(_boxes_in(found.value, label_before(prepared, found.start), found.start, reorder))
    boxes.extend(_paired(prepared, [found for found in values if _is_numbers(found.value, 2)]))
    inside = bool(boxes)  # named sides inside a bracket have already been read with it
    boxes.extend(
        Box(quad, start=at)
        for quad, at in named_corners(prepared)
        if not (inside and any(f.start <= at < f.end for f in values))
    )
    if not boxes and not values and (numbers := bare_numbers(prepared, 4)):
        boxes = [Box(reorder(*numbers))]
    if not boxes:
        return [] if says_none(text) else None
    return sorted(boxes, key=lambda box: box.start) if len(boxes) <= MAX_ITEMS else None


def beyond_limits(text: str) -> str:
    """Why an answer is longer or has more boxes or points than is read; "" if it is within the limits."""
    if len(text) > MAX_CHARS:
        return f"the answer has more than {MAX_CHARS:,} characters and is not read"
    numbers = text.count(",") + text.count(";") + 1
    if numbers <= MAX_ITEMS:
        return ""
    values = _prepare(text)[1]
    count = max(
        (sum(len(kind(found.value, "", 0)) for found in values) for kind in (_boxes_in, _points_in)),
        default=0,
    )
    return (
        f"the answer has more than {MAX_ITEMS:,} boxes or points, which are not read"
        if count > MAX_ITEMS
        else ""
    )


def parse_points(text: str) -> list[Point] | None:
    """The points of an answer in the units in which they are written; a mapping gives all different points
    that it names.

    Returns None if no point is found, and [] if the answer says that there are none.
    """
    prepared, values = _prepare(text)
    points = [point for found in values for point in _points_in(found.value, "", found.start)]
    points += [Point(xy, start=at) for xy, at in named_points(prepared)]
    if not points and not values and (numbers := bare_numbers(prepared, 2)):
        points = [Point((numbers[0], numbers[1]))]
    if not points:
        return [] if says_none(text) else None
    return sorted(points, key=lambda point: point.start) if len(points) <= MAX_ITEMS else None


def says_none(text: str) -> bool:
    """Whether an answer says that there is nothing to find ("None", "[]", "no objects")."""
    stripped = text.strip().strip("`").removeprefix("json").strip()
    return len(stripped) < 100 and _NONE.fullmatch(stripped) is not None


def committed_item(items: Sequence[Any], text: str, tagged: bool) -> Any | None:
    """The box or point that an answer commits to, or None if it names several different ones.

    In answer tags all items must be equal. In free text only the last statement (line or sentence) that names
    an item counts.
    """
    if not tagged and len(items) > 1:
        ends = [m.start() for m in _STATEMENT_END.finditer(text)]
        last = sum(end < items[-1].start for end in ends)
        items = [item for item in items if sum(end < item.start for end in ends) == last]
    different = {
        replace(item, start=0, label="", **({"score": None} if isinstance(item, Box) else {}))
        for item in items
    }
    return items[-1] if len(different) == 1 else None


def gold_boxes(gold: Any, field: str = "answer") -> list[Box]:
    """Gold boxes in original pixels from [x1, y1, x2, y2], a list of them, {"bbox": ..., "label": ...} or a
    text; [] or "None" means none.

    Raises ValueError if it cannot be read or a box has no area.
    """
    if isinstance(gold, (list, tuple)) and not gold:
        return []
    boxes = parse_boxes(gold) if isinstance(gold, str) else _boxes_in(_plain(gold), "", 0, every=False)
    if boxes is None or (not boxes and not isinstance(gold, str)):
        raise GoldError(
            f"{field}: no boxes in the gold answer {gold!r}; give [x1, y1, x2, y2], a list of them, or "
            f"{{'bbox': [...], 'label': ...}}"
        )
    for box in boxes:
        x1, y1, x2, y2 = box.xyxy
        if not (x2 > x1 and y2 > y1):
            raise GoldError(
                f"{field}: the gold box {list(box.xyxy)} has no area; it must be [x1, y1, x2, y2] with x1 "
                "< x2 and y1 < y2"
            )
    return boxes


def gold_points(gold: Any, field: str = "answer") -> list[Point]:
    """Gold points in original pixels. Raises ValueError if none can be read."""
    points = parse_points(gold) if isinstance(gold, str) else _points_in(_plain(gold), "", 0, every=False)
    if not points:
        raise GoldError(
            f"{field}: no point in the gold answer {gold!r}; give [x, y], a list of them, or {{'point': "
            f"[x, y]}}"
        )
    return points


def _plain(value: Any) -> Any:
    """Boxes, arrays and tuples as plain mappings and lists."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Box):
        return {"bbox": list(value.xyxy), "label": value.label, "score": value.score}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _prepare(text: str) -> tuple[str, list[Found]]:
    """The text with box tags replaced by brackets and "px" and "\\left" by blanks (all offsets unchanged),
    and its bracketed values."""
    prepared = _CLOSE_TAG.sub(
        lambda m: "]".rjust(len(m[0])), _OPEN_TAG.sub(lambda m: "[".ljust(len(m[0])), text[: MAX_CHARS + 1])
    )
    prepared = _BLANKED.sub(lambda m: " " * len(m[0]), prepared)
    return prepared, find_values(prepared)


def _is_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(is_number(v) for v in value)


def _same(a: float, b: float, c: float, d: float) -> Quad:
    return a, b, c, d


def _quad(value: Any, reorder: Callable[..., Quad] = _same) -> Quad | None:
    """Four numbers from [x1, y1, x2, y2] (in the given order) or [[x1, y1], [x2, y2]]."""
    if isinstance(value, list) and len(value) == 2 and all(_is_numbers(v, 2) for v in value):
        return _same(*(float(v) for v in value[0] + value[1]))
    return reorder(*(float(v) for v in value)) if _is_numbers(value, 4) else None


def _named_quad(lower: Mapping[str, Any]) -> Quad | None:
    """A box from named sides, named corners, or a corner and a size."""
    for names in CORNER_NAMES:
        if all(name in lower for name in names):
            return _quad([lower[name] for name in names])
    for first, second in _PAIR_KEYS:
        if first in lower and second in lower:
            return _quad([lower[first], lower[second]])
    for sizes in _SIZE_KEYS:
        if all(is_number(lower.get(name)) for name in sizes):
            x, y, width, height = (float(lower[name]) for name in sizes)
            return x, y, x + width, y + height
    return None


def _first(mapping: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((mapping[key] for key in keys if key in mapping), None)


def _boxes_in(
    value: Any, label: str, start: int, reorder: Callable[..., Quad] = _same, every: bool = True
) -> list[Box]:
    """All boxes of a nested value. `label`: the name that stands before the value; `start`: the offset of the
    value.

    every: a mapping gives each different box that it names, under any key; False takes the box of the first
    known key, for gold answers whose rows hold other numbers as well.
    """
    quad = _quad(value, reorder)
    if quad:
        return [Box(quad, label, start=start)]
    if isinstance(value, list):
        return [box for member in value for box in _boxes_in(member, label, start, reorder, every)]
    if not isinstance(value, dict):
        return []
    lower = {str(key).lower(): member for key, member in value.items()}
    named = _first(lower, _LABEL_KEYS)
    label = named if isinstance(named, str) else label
    score = _first(lower, _SCORE_KEYS)
    score = float(score) if is_number(score) else None
    named_quads = [_named_quad(lower), *(_quad(lower[key], reorder) for key in _BOX_KEYS if key in lower)]
    quads = list(dict.fromkeys(quad for quad in named_quads if quad))
    if not every:
        quad = _named_quad(lower) or _quad(_first(lower, _BOX_KEYS), reorder)
        quads = [quad] if quad else []
    if quads:
        boxes = [Box(quad, label, score, start) for quad in quads]
        other = [member for key, member in lower.items() if key not in _NO_SECOND_BOX] + [
            member for _, member in repeated_in(value)
        ]
        more = [box for member in other for box in _boxes_in(member, label, start, reorder)] if every else []
        return boxes + [box for box in more if box.xyxy not in quads]
    boxes = []
    for key, member in value.items():
        boxes += _boxes_in(
            member, label if str(key).lower() in _CONTAINER_KEYS else str(key), start, reorder, every
        )
    return boxes


def _points_in(value: Any, label: str, start: int, every: bool = True) -> list[Point]:
    """All points of a nested value; `every` as in `_boxes_in`."""
    if _is_numbers(value, 2):
        return [Point((float(value[0]), float(value[1])), label, start)]
    if isinstance(value, list):
        return [point for member in value for point in _points_in(member, label, start, every)]
    if not isinstance(value, dict):
        return []
    lower = {str(key).lower(): member for key, member in value.items()}
    named = _first(lower, _LABEL_KEYS)
    label = named if isinstance(named, str) else label
    direct = [[lower["x"], lower["y"]]] if "x" in lower and "y" in lower else []
    direct += [lower[key] for key in _POINT_KEYS if lower.get(key) is not None]
    if not direct:
        return [point for member in value.values() for point in _points_in(member, label, start, every)]
    points = _points_in(direct[0], label, start, every)
    if every:
        ignored = {"x", "y", *_POINT_KEYS, *_BOX_KEYS, *_SCORE_KEYS, *_LABEL_KEYS}
        other = [
            member for key, member in lower.items() if key not in ignored and not _NO_POINT_KEY.search(key)
        ]
        swapped = {"x": lambda v: [v, lower.get("y")], "y": lambda v: [lower.get("x"), v]}
        other += [swapped.get(key.lower(), lambda v: v)(v) for key, v in repeated_in(value)]
        more = [point for member in (*direct[1:], *other) for point in _points_in(member, label, start)]
        points += [point for point in more if point.xy not in {p.xy for p in points}]
    return points


def _paired(text: str, points: Sequence[Found]) -> list[Box]:
    """Boxes written as `(x1,y1),(x2,y2)`: two points with only a separator between them. An odd number of
    adjacent points makes no box."""
    rows: list[list[Found]] = []
    for point in points:
        if rows and are_corners(text, rows[-1][-1].end, point.start):
            rows[-1].append(point)
        else:
            rows.append([point])
    pairs = [pair for row in rows if len(row) % 2 == 0 for pair in zip(row[::2], row[1::2], strict=True)]
    return [
        Box(_same(*(float(v) for v in a.value + b.value)), label_before(text, a.start), start=a.start)
        for a, b in pairs
    ]


def layout_of(name: str) -> Callable[..., Quad]:
    """The function that maps four numbers in the order `name` to (x1, y1, x2, y2). Raises ValueError for an
    unknown order."""
    table = {
        "xyxy": lambda a, b, c, d: (a, b, c, d),
        "xywh": lambda x, y, w, h: (x, y, x + w, y + h),
        "cxcywh": lambda x, y, w, h: (x - w / 2, y - h / 2, x + w / 2, y + h / 2),
        "yxyx": lambda a, b, c, d: (b, a, d, c),
    }
    if name not in table:
        raise ValueError(
            f"layout: {name!r} is not an order of box coordinates; use one of {', '.join(table)}"
        )
    return table[name]
