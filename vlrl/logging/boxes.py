"""Boxes and points that the report draws on an image: the gold ones of a row and those in a completion.
Nothing is scored here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from vlrl.types import CoordinateSpace, Rollout

_NUMBER = r"-?\d{1,7}(?:\.\d{1,7})?"
_NUMBERS = re.compile(
    rf"[\[(]\s*({_NUMBER}(?:\s*,\s*{_NUMBER})+)\s*[\])]", re.ASCII
)  # ASCII: \d and \s know more than float() does
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_LABELS = ("label", "category", "name", "class")
MAX_MARKS = 50


def gold_marks(answer: Any) -> list[dict[str, Any]]:
    """Boxes and points of a gold answer, as {"xy": [...], "label": str}, in original pixels.

    A mark is a list of four numbers (a box) or two (a point), bare, in a list, or under any key of a mapping.
    """
    return list(_find(answer, ""))[:MAX_MARKS]


def _find(value: Any, label: str) -> Any:
    if isinstance(value, Mapping):
        own = next((str(value[key]) for key in _LABELS if isinstance(value.get(key), str)), label)
        for item in value.values():
            yield from _find(item, own)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if value and all(isinstance(number, Real) and not isinstance(number, bool) for number in value):
            if is_mark([float(number) for number in value]):
                yield {"xy": [float(number) for number in value], "label": label}
        else:
            for item in value:
                yield from _find(item, label)


def is_mark(numbers: Sequence[float]) -> bool:
    """Whether numbers can be a box (x1 < x2, y1 < y2) or a point, and not the order of two or four puzzle
    pieces."""
    count = len(numbers)
    if sorted(numbers) in (list(range(count)), list(range(1, count + 1))):
        return False
    return count == 2 or (count == 4 and numbers[0] < numbers[2] and numbers[1] < numbers[3])


def predicted_marks(rollout: Rollout, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Marks in a completion, in original pixels: `[x1, y1, x2, y2]` or `(x, y)` inside `<answer>`, or
    anywhere if it has no answer tag.

    `sizes` are the accepted counts of numbers (4 for boxes, 2 for points). A reward may put its own reading
    into `rollout.info["marks"]`.
    """
    if "marks" in rollout.info:
        return list(rollout.info["marks"])[:MAX_MARKS]
    answers = _ANSWER.findall(rollout.text)
    text = answers[-1] if answers else rollout.text
    space = rollout.spaces[0] if rollout.spaces else CoordinateSpace((1, 1), (1, 1), "original")
    found: list[dict[str, Any]] = []
    for match in _NUMBERS.finditer(text):
        numbers = [float(number) for number in re.findall(_NUMBER, match.group(1), re.ASCII)]
        if len(numbers) in sizes and len(found) < MAX_MARKS:
            found.append({"xy": [round(value, 2) for value in space.to_original(numbers)], "label": ""})
    return found
