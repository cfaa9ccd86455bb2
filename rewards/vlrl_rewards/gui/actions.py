"""GUI action reward: one step of an agent, the action and its arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import CoordinateSpace, Row
from vlrl_rewards.boxes.reading import Box, gold_boxes, gold_points, parse_points, to_original
from vlrl_rewards.boxes.unbracketed import bare_numbers
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values, repeated_in
from vlrl_rewards.points.points import inside, is_box
from vlrl_rewards.recognition.classification import normal_label
from vlrl_rewards.text.metrics import f_score
from vlrl_rewards.text.process import section

_NAME_KEYS = ("action", "action_type", "function", "name", "type")
_TEXT_KEYS = ("input_text", "text", "value", "content", "argument")
_APP_KEYS = ("app", "app_name")
_ARGUMENT_KEYS = ("arguments", "args", "parameters")
_POINT_KEY = re.compile(r"point|coord|click|position")
_DIRECTION_KEYS = ("direction", "scroll_direction")
_POINT_KEYS = ("point", "coordinate", "coordinates", "point_2d", "position", "start", "click")
_SYNONYMS = {
    "click": ("tap", "left click", "press"),
    "long press": ("longpress", "long click", "hold"),
    "type": ("input text", "input", "enter text", "write"),
    "scroll": ("swipe",),
    "open app": ("open", "launch", "open application"),
    "back": ("press back", "navigate back", "go back"),
    "home": ("press home", "navigate home", "go home"),
    "complete": ("finish", "finished", "done", "terminate", "task complete"),
}
_CANONICAL = {other: name for name, others in _SYNONYMS.items() for other in (name, *others)}
POINTED = frozenset({"click", "long press", "double click", "right click", "hover"})
WORDED = frozenset({"type", "select", "open app"})
TYPED = frozenset({"type", "select"})


_CALL = re.compile(r"\b([A-Za-z_]{3,30})\(([^()]{0,300}(?:\([^()]{0,100}\)[^()]{0,300})?)\)")
_ARGUMENT = re.compile(
    r"([A-Za-z_]{1,20})\s{0,3}=\s{0,3}(?:'([^']{0,200})'|\"([^\"]{0,200})\"|([^,'\"]{1,60}(?:,\s{0,"
    r"3}[0-9.]{1,12}\s{0,3}[\])]?)?))"
)


def read_call(text: str) -> Mapping[str, Any] | None:
    """The one action written as a call, as a mapping; None if there is none or several.

    Examples: `click(start_box='(12,34)')`, `click(12, 34)`, `scroll(direction="down")`. Only the first 4,000
    characters are read.
    """
    calls = _CALL.findall(text[:4000])
    if len(calls) != 1:
        return None
    arguments = {
        name.lower(): first or second or third
        for name, first, second, third in _ARGUMENT.findall(calls[0][1])
    }
    if not arguments and (numbers := bare_numbers(calls[0][1], 2)):
        arguments["point"] = str(numbers)
    start = arguments.pop("start_box", arguments.pop("start_point", None))
    return {"action": calls[0][0], **arguments, **({"point": start} if start else {})}


def read_action(text: str) -> Mapping[str, Any] | None:
    """The one action of an answer as a mapping with lower-case keys; None if there is none or several.

    Several are also two names ("action", "action_type", "function") that differ, an argument given twice with
    different values, and an action under another key.
    Formats: JSON or Python literals, `<tool_call>` objects with "arguments", or a single call such as
    `click(start_box='(12,34)')`.
    """
    values = [found.value for found in find_values(text)]
    actions = [
        v for value in values for v in (value if isinstance(value, list) else [value]) if isinstance(v, dict)
    ]
    if len(actions) != 1:
        return None if actions else read_call(text)
    written = _unwrapped(actions[0])
    action = _lower(written)
    merged = dict(action)
    for nested in (_lower(action[key]) for key in _ARGUMENT_KEYS if isinstance(action.get(key), dict)):
        if any(
            merged[key] != value for key, value in nested.items() if key in merged and key not in _NAME_KEYS
        ):
            return None
        merged |= nested
    return None if _several(merged) or repeated_in(written) else merged


def _unwrapped(action: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The action of BTL-UI's {"Plan": "...", "Action": {"function": "Tap", ...}}; any other mapping as it
    is."""
    inner = _lower(action).get("action")
    wrapped = {str(key).lower() for key in action} <= {"plan", "action"}
    return inner if isinstance(inner, dict) and wrapped and not repeated_in(action) else action


def _lower(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """The mapping with lower-case keys."""
    return {str(key).lower(): value for key, value in mapping.items()}


def _several(action: Mapping[str, Any]) -> bool:
    """Whether a mapping names two different actions, or holds another action under a key that is not for
    arguments."""
    names = {
        _canonical(action[key])
        for key in ("action", "action_type", "function")
        if isinstance(action.get(key), str)
    }
    members = [
        m
        for key, value in action.items()
        if key not in _ARGUMENT_KEYS
        for m in (value if isinstance(value, list) else [value])
    ]
    return len(names) > 1 or any(isinstance(m, dict) and action_name(_lower(m)) in _SYNONYMS for m in members)


def action_name(action: Mapping[str, Any]) -> str:
    """The canonical name of the action ("tap" becomes "click"); "" if it has none."""
    raw = next((action[key] for key in _NAME_KEYS if isinstance(action.get(key), str)), "")
    return _canonical(raw)


def _canonical(name: str) -> str:
    """The normalised name of an action, synonyms replaced."""
    return _CANONICAL.get(normal_label(name), normal_label(name))


def argument(action: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The normalised text argument under `keys`; "" if there is none, or several different ones."""
    values = {
        normal_label(str(action[key])) for key in keys if isinstance(action.get(key), (str, int, float))
    } - {""}
    return values.pop() if len(values) == 1 else ""


def text_argument(action: Mapping[str, Any]) -> str:
    """The text that an action types or selects, else the name of its app."""
    return argument(
        action,
        _TEXT_KEYS
        if any(isinstance(action.get(key), (str, int, float)) for key in _TEXT_KEYS)
        else _APP_KEYS,
    )


def direction_argument(action: Mapping[str, Any]) -> str:
    """The direction of a scroll."""
    return argument(
        action,
        _DIRECTION_KEYS if any(isinstance(action.get(key), str) for key in _DIRECTION_KEYS) else _TEXT_KEYS,
    )


def word_set_f1(a: str, b: str) -> float:
    """F1 of the sets of words of two texts, in [0, 1]: a repeated word counts once."""
    words_a, words_b = set(a.split()), set(b.split())
    return f_score(len(words_a & words_b), len(words_a), len(words_b))


@verifier("gui_action", "gui")
@register("gui_action")
@dataclass(frozen=True, kw_only=True)
class GuiAction(Graded):
    """GUI action reward: the type of the action and its arguments.

        r = type_credit 1[same action] + (1 - type_credit) 1[same action and correct arguments]

    Arguments: click-like: the point lies in the gold box, or within `radius` of the gold point (`radius_in`
    "seen": in pixels of the resized picture); type-like:
    F1 of the sets of words >= `text_f1`; scroll: the same direction. Paper: UI-R1, arXiv:2503.21620, eq. 3-5
    (R_T + R_C: type_credit 0.5); GUI-R1, arXiv:2504.10458, sec. 3.2 (type_credit 0, radius 140, text F1 0.5);
    BTL-UI, arXiv:2509.15566, sec. 3 (point in box, and hypot(dx / W, dy / H) < `relative` from the gold
    point). Deviates: rewards/DEVIATIONS.md. Range [0, 1]. Gold: {"action": "click", "box": [...] or "point":
    [...]}, {"action": "type", "text": "..."}, {"action": "scroll", "direction": "up"} in original pixels.
    """

    type_credit: float = 0.0
    radius: float = 140.0
    radius_in: Literal["original", "seen"] = "original"
    relative: float = 0.0
    text_f1: float = 0.5
    tag: str = ""
    unnamed: str = ""
    picture: int = 0
    compared: Literal["all", "typed", "clicks"] = "all"

    @property
    def worded(self) -> frozenset[str]:
        """The actions whose texts are always compared."""
        return {"all": WORDED, "typed": TYPED, "clicks": frozenset[str]()}[self.compared]

    def target(self, gold: Any, row: Row) -> Mapping[str, Any]:
        action = (
            read_action(gold)
            if isinstance(gold, str)
            else {str(k).lower(): v for k, v in gold.items()}
            if isinstance(gold, Mapping)
            else None
        )
        if action is None or not action_name(action):
            raise GoldError(
                f"answer: {gold!r} is not an action; give a mapping such as {{'action': 'click', 'box': "
                f"[x1, y1, x2, y2]}}"
            )
        name = action_name(action)
        if name in POINTED and self.place(action) is None:
            raise GoldError(f"answer: the gold action {name!r} needs a box or a point, got {gold!r}")
        if name in self.worded and not text_argument(action):
            raise GoldError(f"answer: the gold action {name!r} needs a text, got {gold!r}")
        return action

    def place(self, action: Mapping[str, Any]) -> Any:
        """The box or point of a gold action, as it is written; None if it has none."""
        return next(
            (action[key] for key in ("box", "bbox", "gt_bbox", *_POINT_KEYS) if action.get(key) is not None),
            None,
        )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = section(response, self.tag) if self.tag else self.committed(response)
        action = read_action(answer.text)
        name = (action_name(action) or self.unnamed) if action else ""
        if not action:
            raise Unread("no action", answer)
        if name != action_name(target):
            return self.wrong(answer, f"{name!r} instead of {action_name(target)!r}", name)
        correct = self.arguments(name, action, target, response.spaces, row)
        return self.scored(
            answer,
            self.type_credit + (1 - self.type_credit) * correct,
            correct,
            "correct arguments" if correct else "wrong arguments",
            name,
        )

    def arguments(
        self,
        name: str,
        action: Mapping[str, Any],
        target: Mapping[str, Any],
        spaces: Sequence[CoordinateSpace],
        row: Row,
    ) -> bool:
        """Whether the arguments of two actions of the same name agree."""
        if self.compared == "clicks" and name not in POINTED:
            return True
        if name in POINTED:
            return self.hits(action, target, spaces, row.meta.get("picture", self.picture))
        if name == "scroll":
            return direction_argument(action) == direction_argument(target)
        if name in self.worded or (text_argument(target) and self.compared == "all"):
            return word_set_f1(text_argument(action), text_argument(target)) >= self.text_f1
        return True

    def zoom(self, spaces: Sequence[CoordinateSpace], picture: int) -> tuple[float, float]:
        """(x, y): pixels in which `radius` is measured, per pixel of the original picture."""
        if self.radius_in == "original" or not spaces:
            return 1.0, 1.0
        (width, height), (seen_width, seen_height) = spaces[picture].original, spaces[picture].seen
        return seen_width / width, seen_height / height

    def hits(
        self,
        action: Mapping[str, Any],
        target: Mapping[str, Any],
        spaces: Sequence[CoordinateSpace],
        picture: int,
    ) -> bool:
        """Whether the point of an action lies in the gold box, or within `radius` of the gold point."""
        named = [
            value
            for key, value in action.items()
            if value is not None and (key in _POINT_KEYS or _POINT_KEY.search(key))
        ]
        points = {point.xy for value in named for point in parse_points(str(value)) or ()}
        if len(points) != 1:
            return False
        point = to_original(points.pop(), spaces, picture)
        place = self.place(target)
        gold: Any = gold_boxes(place)[0] if is_box(place) else gold_points(place)[0]
        if not isinstance(gold, Box):
            (x, y), (gold_x, gold_y), (right, down) = point, gold.xy, self.zoom(spaces, picture)
            return math.hypot((x - gold_x) * right, (y - gold_y) * down) <= self.radius
        middle = next((target[key] for key in _POINT_KEYS if target.get(key) is not None), None)
        near = True
        if self.relative and middle is not None and spaces:
            width, height = spaces[picture].original
            (x, y), (gold_x, gold_y) = point, gold_points(middle)[0].xy
            near = math.hypot((x - gold_x) / width, (y - gold_y) / height) < self.relative
        return near and inside(point, gold.xyxy)
