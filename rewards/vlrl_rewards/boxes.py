"""The one place that reads boxes and points out of an answer, and that turns the policy's coordinates into original pixels.

Understood: JSON and Python literals (`[x1, y1, x2, y2]`, lists of them, `{"bbox_2d": [...], "label": ...}`,
`{'Position': ..., 'Confidence': ...}`, `{"dog": [...]}`), `(x1,y1),(x2,y2)`, `<box>...</box>`, `<|box_start|>...<|box_end|>`,
`<point x="" y="">`, and four (two) bare numbers that are all there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.types import Space
from vlrl_rewards.loose import MAX_CHARS, NUMBER, Found, find_values, is_number

MAX_ITEMS = 1000
_BOX_KEYS = ("bbox_2d", "bbox", "bounding_box", "boundingbox", "box", "box_2d", "position", "coordinates", "coordinate", "coords", "rect", "region")
_CORNER_KEYS = tuple(names.split() for names in ("x1 y1 x2 y2", "xmin ymin xmax ymax", "x_min y_min x_max y_max", "left top right bottom"))
_POINT_KEYS = ("point_2d", "point", "click", "click_point", "coordinate", "coordinates", "center", "position")
_LABEL_KEYS = ("label", "category", "class", "name", "category_name", "object", "id")
_SCORE_KEYS = ("confidence", "score", "conf", "probability")
_OPEN_TAG = re.compile(r"<\|?(?:box|bbox|bbox_2d|box_start|point)\|?>", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</(?:box|bbox|bbox_2d|point)>|<\|(?:box|point)_end\|>", re.IGNORECASE)
_REF_TAG = re.compile(r"<\|?(?:ref|object_ref_start)\|?>([^<]{0,200})<(?:/ref|\|object_ref_end\|)>", re.IGNORECASE)
_XML_POINT = re.compile(rf"""\bx(\d{{0,3}})\s?=\s?["']?({NUMBER})["']?\s{{1,3}}y\1\s?=\s?["']?({NUMBER})""", re.IGNORECASE)
_BARE = re.compile(rf"[\s(<\[]{{0,9}}({NUMBER}(?:[\s,;]{{1,9}}{NUMBER}){{1,15}})[\s)>\].]{{0,9}}")
_NUMBER = re.compile(NUMBER)
_GAP = re.compile(r"\s{0,5}(?:,|to|and|-|;)?\s{0,5}", re.IGNORECASE)
_NONE = re.compile(
    r"(?:none|null|nothing|empty|n/a|no|\[\s{0,9}\]|\{\s{0,9}\}"
    r"|(?:there (?:is|are) )?no(?:ne)?(?: such)? (?:objects?|boxe?s?|match(?:es)?|target|instances?)(?: (?:found|detected|present|visible))?)\.?",
    re.IGNORECASE,
)
_STATEMENT_END = re.compile(r"\n|[.;!?]\s")


@dataclass(frozen=True)
class Box:
    """A box (x1, y1, x2, y2) with what was said about it. `start` is its place in the text, for telling statements apart."""

    xyxy: tuple[float, float, float, float]
    label: str = ""
    score: float | None = None
    start: int = 0


@dataclass(frozen=True)
class Point:
    """A point (x, y)."""

    xy: tuple[float, float]
    label: str = ""
    start: int = 0


# --- coordinates ------------------------------------------------------------------------------------------------------------------------


def to_original(xy: Sequence[float], spaces: Sequence[Space], picture: int = 0) -> tuple[float, ...]:
    """(x, y, x, y, ...) in the policy's units to original pixels of picture `picture`. Without spaces they are taken as original pixels.

    Raises ValueError if there is no such picture.
    """
    if not spaces:
        return tuple(float(value) for value in xy)
    if not 0 <= picture < len(spaces):
        raise ValueError(f"picture: there is no picture {picture} among {len(spaces)}; it counts from 0")
    return spaces[picture].to_original(xy)


def read_boxes(text: str, spaces: Sequence[Space] = (), picture: int = 0, layout: str = "xyxy") -> list[Box] | None:
    """Boxes of an answer in original pixels; [] if it says that there are none; None if it holds no box at all."""
    boxes = parse_boxes(text, layout)
    return boxes and [replace(box, xyxy=to_original(box.xyxy, spaces, picture)) for box in boxes]


def read_points(text: str, spaces: Sequence[Space] = (), picture: int = 0) -> list[Point] | None:
    """Points of an answer in original pixels; as `read_boxes`."""
    points = parse_points(text)
    return points and [replace(point, xy=to_original(point.xy, spaces, picture)) for point in points]


# --- parsing ----------------------------------------------------------------------------------------------------------------------------


def parse_boxes(text: str, layout: str = "xyxy") -> list[Box] | None:
    """Boxes of an answer, in the units and the order they are written. `layout`: xyxy, xywh, cxcywh or yxyx. None: no box found; []: "none"."""
    reorder = _layout(layout)
    prepared, values = _prepare(text)
    boxes: list[Box] = []
    loose_points: list[Found] = []
    for found in values:
        label = _reference(prepared, found.start)
        if _is_numbers(found.value, 2):
            loose_points.append(found)
        boxes.extend(_boxes_in(found.value, label, found.start))
    boxes.extend(_paired(prepared, loose_points))
    if not boxes and not values:
        boxes = [Box(tuple(numbers)) for numbers in _bare_numbers(prepared, 4)]  # type: ignore[arg-type]
    if not boxes:
        return [] if says_none(text) else None
    if len(boxes) > MAX_ITEMS:
        return None
    return [replace(box, xyxy=reorder(*box.xyxy)) for box in boxes]


def parse_points(text: str) -> list[Point] | None:
    """Points of an answer as they are written. None: no point found; []: the answer says that there are none."""
    points = [Point((float(m[2]), float(m[3])), start=m.start()) for m in _XML_POINT.finditer(text[:MAX_CHARS])]
    if not points:
        prepared, values = _prepare(text)
        points = [point for found in values for point in _points_in(found.value, "", found.start)]
        if not points and not values:
            points = [Point((x, y)) for x, y in _bare_numbers(prepared, 2)]
    if not points:
        return [] if says_none(text) else None
    return points if len(points) <= MAX_ITEMS else None


def says_none(text: str) -> bool:
    """Whether an answer says that there is nothing to find ("None", "[]", "no objects")."""
    stripped = text.strip().strip("`").removeprefix("json").strip()
    return len(stripped) < 100 and _NONE.fullmatch(stripped) is not None


def the_one(items: Sequence[Any], text: str, tagged: bool) -> Any | None:
    """The item an answer commits to, or None if it names several different ones.

    Inside answer tags there may be one only. In free text the last statement (line or sentence) that names any decides.
    """
    if not tagged and len(items) > 1:
        ends = [m.start() for m in _STATEMENT_END.finditer(text)]
        last = sum(end < items[-1].start for end in ends)
        items = [item for item in items if sum(end < item.start for end in ends) == last]
    different = {replace(item, start=0, label="", **({"score": None} if isinstance(item, Box) else {})) for item in items}
    return items[-1] if len(different) == 1 else None


def gold_boxes(gold: Any, field: str = "answer") -> list[Box]:
    """Gold boxes (original pixels) from a list of numbers, of lists, of {"bbox": ..., "label": ...} or from text; [] or "None" means none.

    Raises ValueError if it cannot be read or a box has no area.
    """
    if isinstance(gold, (list, tuple)) and not gold:
        return []
    boxes = parse_boxes(gold) if isinstance(gold, str) else _boxes_in(_plain(gold), "", 0)
    if boxes is None or (not boxes and not isinstance(gold, str)):
        raise ValueError(f"{field}: no boxes in the gold answer {gold!r}; give [x1, y1, x2, y2], a list of them, or {{'bbox': [...], 'label': ...}}")
    for box in boxes:
        x1, y1, x2, y2 = box.xyxy
        if not (x2 > x1 and y2 > y1):
            raise ValueError(f"{field}: the gold box {list(box.xyxy)} has no area; it must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2")
    return boxes


def gold_points(gold: Any, field: str = "answer") -> list[Point]:
    """Gold points (original pixels). Raises ValueError if none can be read."""
    points = parse_points(gold) if isinstance(gold, str) else _points_in(_plain(gold), "", 0)
    if not points:
        raise ValueError(f"{field}: no point in the gold answer {gold!r}; give [x, y], a list of them, or {{'point': [x, y]}}")
    return points


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Box):
        return {"bbox": list(value.xyxy), "label": value.label, "score": value.score}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _prepare(text: str) -> tuple[str, list[Found]]:
    prepared = _CLOSE_TAG.sub("]", _OPEN_TAG.sub("[", text[: MAX_CHARS + 1]))
    return prepared, find_values(prepared)


def _reference(text: str, start: int) -> str:
    tail = text[max(0, start - 260) : start]
    matches = list(_REF_TAG.finditer(tail))
    return matches[-1][1].strip() if matches and not tail[matches[-1].end() :].strip() else ""


def _is_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(is_number(v) for v in value)


def _quad(value: Any) -> tuple[float, float, float, float] | None:
    """Four numbers from [x1, y1, x2, y2], [[x1, y1], [x2, y2]] or "[x1, y1, x2, y2]"."""
    if isinstance(value, list) and len(value) == 2 and all(_is_numbers(v, 2) for v in value):
        value = value[0] + value[1]
    return tuple(float(v) for v in value) if _is_numbers(value, 4) else None  # type: ignore[return-value]


def _first(mapping: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((mapping[key] for key in keys if key in mapping), None)


def _boxes_in(value: Any, label: str, start: int) -> list[Box]:
    quad = _quad(value)
    if quad:
        return [Box(quad, label, start=start)]
    if isinstance(value, list):
        return [box for member in value for box in _boxes_in(member, label, start)]
    if not isinstance(value, dict):
        return []
    lower = {str(key).lower(): member for key, member in value.items()}
    named = _first(lower, _LABEL_KEYS)
    label = named if isinstance(named, str) else label
    score = _first(lower, _SCORE_KEYS)
    score = float(score) if is_number(score) else None
    corners = next(([lower[k] for k in keys] for keys in _CORNER_KEYS if all(k in lower for k in keys)), None)
    quad = _quad(corners) or _quad(_first(lower, _BOX_KEYS))
    if quad:
        return [Box(quad, label, score, start)]
    known = {*_BOX_KEYS, *_SCORE_KEYS, "objects", "boxes", "bboxes", "detections", "predictions", "answer", "results", "annotations", "instances"}
    return [box for key, member in value.items() for box in _boxes_in(member, label if str(key).lower() in known else str(key), start)]


def _points_in(value: Any, label: str, start: int) -> list[Point]:
    if _is_numbers(value, 2):
        return [Point((float(value[0]), float(value[1])), label, start)]
    if isinstance(value, list):
        return [point for member in value for point in _points_in(member, label, start)]
    if not isinstance(value, dict):
        return []
    lower = {str(key).lower(): member for key, member in value.items()}
    named = _first(lower, _LABEL_KEYS)
    label = named if isinstance(named, str) else label
    direct = [lower.get("x"), lower.get("y")] if "x" in lower and "y" in lower else _first(lower, _POINT_KEYS)
    members = [direct] if direct is not None else list(value.values())
    return [point for member in members for point in _points_in(member, label, start)]


def _paired(text: str, points: Sequence[Found]) -> list[Box]:
    """`(x1,y1),(x2,y2)`: two points with next to nothing between them."""
    boxes, at = [], 0
    while at + 1 < len(points):
        first, second = points[at], points[at + 1]
        if _GAP.fullmatch(text, first.end, second.start):
            boxes.append(Box((*map(float, first.value), *map(float, second.value)), _reference(text, first.start), start=first.start))  # type: ignore[arg-type]
            at += 1
        at += 1
    return boxes


def _bare_numbers(text: str, count: int) -> list[list[float]]:
    """The numbers of a text that is nothing but `count` numbers."""
    match = _BARE.fullmatch(text.strip()) if len(text) < 400 else None
    numbers = [float(n) for n in _NUMBER.findall(match[1])] if match else []
    return [numbers] if len(numbers) == count and all(is_number(n) for n in numbers) else []


def _layout(name: str) -> Any:
    table = {
        "xyxy": lambda a, b, c, d: (a, b, c, d),
        "xywh": lambda x, y, w, h: (x, y, x + w, y + h),
        "cxcywh": lambda x, y, w, h: (x - w / 2, y - h / 2, x + w / 2, y + h / 2),
        "yxyx": lambda a, b, c, d: (b, a, d, c),
    }
    if name not in table:
        raise ValueError(f"layout: {name!r} is not an order of coordinates; use one of {', '.join(table)}")
    return table[name]
