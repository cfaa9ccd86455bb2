"""Gold answers as datasets write them, turned into the values that rewards read."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from vlrl.types import CoordinateSpace

ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
CODE_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
NUMBER = r"-?\d+(?:\.\d+)?"
BOX = re.compile(rf"\[\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*\]")
BOX_CORNERS = re.compile(
    rf"\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)\s*,\s*\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)"
)


def strip_tags(text: str) -> str:
    """The content of the last <answer> tags, or else of the only code fence, or else the text; trimmed."""
    tagged = ANSWER_TAGS.findall(text)
    text = tagged[-1] if tagged else text
    fenced = CODE_FENCE.findall(text)
    return (fenced[0] if len(fenced) == 1 else text).strip()


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def numbers_of(match: re.Match[str]) -> list[int | float]:
    """The groups of a match as numbers."""
    return [_number(group) for group in match.groups()]


def literal(text: str) -> Any:
    """JSON, or else a Python literal (no code is run). Raises ValueError if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"neither JSON nor a Python literal: {error}") from None


def parse_answer(answer: Any) -> Any:
    """`<answer>3</answer>` -> "3"; a box or a list of boxes in text -> numbers; None if there is nothing;
    anything else as it is."""
    if not isinstance(answer, str):
        return None if isinstance(answer, (list, dict)) and not answer and answer != [] else answer
    text = strip_tags(answer)
    if not text:
        return None
    if box := BOX.fullmatch(text):
        return numbers_of(box)
    if text[0] == "[" and ("{" in text or BOX.search(text)):
        try:
            value = literal(text)
        except ValueError:
            return text
        return value if isinstance(value, list) else text
    return text


def to_pixels(value: Any, space: CoordinateSpace) -> Any:
    """Boxes in the units of `space` (nested lists of four numbers) in original pixels, rounded to two
    decimals."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) == 4 and all(isinstance(item, (int, float)) for item in value):
            return [round(item, 2) for item in space.to_original([float(item) for item in value])]
        return [to_pixels(item, space) for item in value]
    return value
