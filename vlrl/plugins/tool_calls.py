"""Tool calls in a turn's text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of Qwen's
chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vlrl.types import CoordinateSpace

STOP = "</tool_call>"


def last_tagged(text: str, tag: str) -> str | None:
    """What stands between the last closing tag and the opening one before it; None without both. Linear in
    the length of the text."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if start < 0 else text[start + len(tag) + 2 : end]


def last_call(text: str) -> tuple[str, dict[str, Any]] | str | None:
    """(name, arguments) of the last call in `text`; an error message for the model if it cannot be parsed;
    None if there is none."""
    found = last_tagged(text, "tool_call")
    if found is None:
        return None
    try:
        call = json.loads(found)
    except (ValueError, RecursionError) as error:  # of a text that is not JSON, or nested too deeply
        return f"Error: the tool call is not valid JSON ({error})."
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments", {}), dict)
    ):
        return 'Error: a tool call is {"name": ..., "arguments": {...}}.'
    return call["name"], call.get("arguments", {})


def numbers(value: Any, count: int) -> list[float] | None:
    """`count` numbers below 1e9 in size, or None where the value is anything else."""
    if (
        not isinstance(value, list)
        or len(value) != count
        or not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in value)
    ):
        return None
    return [float(x) for x in value] if all(abs(x) < 1e9 for x in value) else None


def call_text(name: str, **arguments: Any) -> str:
    """A turn that calls a tool, as an expert writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def written(place: Sequence[float], space: CoordinateSpace) -> list[float]:
    """(x, y, x, y, ...) in pixels of a picture, as an expert writes it: in the policy's units, whole numbers
    unless they go from 0 to 1."""
    return [round(value, 3 if space.units == "unit" else None) for value in space.from_original(place)]
