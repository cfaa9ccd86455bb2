"""Tool calls in a turn's text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of Qwen's chat templates."""

from __future__ import annotations

import json
import re
from typing import Any

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
STOP = "</tool_call>"


def last_call(text: str) -> tuple[str, dict[str, Any]] | str | None:
    """(name, arguments) of the last call in `text`; an error message for the model if it cannot be parsed; None if there is none."""
    found = CALL.findall(text)
    if not found:
        return None
    try:
        call = json.loads(found[-1])
    except (ValueError, RecursionError) as error:  # of a text that is not JSON, or nested too deeply
        return f"Error: the tool call is not valid JSON ({error})."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not isinstance(call.get("arguments", {}), dict):
        return 'Error: a tool call is {"name": ..., "arguments": {...}}.'
    return call["name"], call.get("arguments", {})


def numbers(value: Any, count: int) -> list[float] | None:
    """`count` numbers below 1e9 in size, or None where the value is anything else."""
    if not isinstance(value, list) or len(value) != count or not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in value):
        return None
    return [float(x) for x in value] if all(abs(x) < 1e9 for x in value) else None
