"""Gold answers as datasets write them, as the values that rewards read."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from vlrl.types import Space

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
NUMBER = r"-?\d+(?:\.\d+)?"
FOUR = re.compile(rf"\[\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*\]")
CORNERS = re.compile(rf"\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)\s*,\s*\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)")


def untagged(text: str) -> str:
    """What stands in the last answer tags, or else in the only code fence, or else the text; trimmed."""
    tagged = TAGGED.findall(text)
    text = tagged[-1] if tagged else text
    fenced = FENCED.findall(text)
    return (fenced[0] if len(fenced) == 1 else text).strip()


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value == int(value) else value


def box(match: re.Match[str]) -> list[int | float]:
    """Four numbers of a match."""
    return [_number(group) for group in match.groups()]


def literal(text: str) -> Any:
    """JSON, or else a Python literal (no code); raises ValueError if it is neither."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return ast.literal_eval(text)
        except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"neither JSON nor a Python literal: {error}") from None


def parsed(answer: Any) -> Any:
    """`<answer>3</answer>` -> "3"; a box or a list of boxes in text -> numbers; anything else as it is. None if there is nothing."""
    if not isinstance(answer, str):
        return None if isinstance(answer, (list, dict)) and not answer and answer != [] else answer
    text = untagged(answer)
    if not text:
        return None
    if four := FOUR.fullmatch(text):
        return box(four)
    if text[0] == "[" and ("{" in text or FOUR.search(text)):
        try:
            value = literal(text)
        except ValueError:
            return text
        return value if isinstance(value, list) else text
    return text


def scaled(value: Any, space: Space) -> Any:
    """Boxes in a family's units (nested lists of four numbers) in original pixels."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) == 4 and all(isinstance(item, (int, float)) for item in value):
            return [round(item, 2) for item in space.to_original([float(item) for item in value])]
        return [scaled(item, space) for item in value]
    return value
