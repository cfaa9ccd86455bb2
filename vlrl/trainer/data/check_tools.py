"""The user's tools called once with arguments of their own types, before a model is loaded: a tool without
types, one that raises, hangs, or refuses everything."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vlrl.environments.tools import POLICY_FAULTS, Tool, ToolEnvironment, shown
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.tool_calls import last_call
from vlrl.services.deadline import OverdueError, deadline
from vlrl.services.failures import is_users, user_place
from vlrl.trainer.phase import PhasePlan
from vlrl.types import Row

log = logging.getLogger("vlrl")

SECONDS = 20.0  # of one tool, with the imports that it makes
TRIED = 40  # arguments of a tool
ROWS = 4  # whose words are tried as texts


def check_tools(phases: Sequence[PhasePlan]) -> dict[str, str]:
    """Call every tool that is a function of the user's, and return tool -> why no call was carried out.

    Arguments are those of the rows' demonstrations, then words of the rows and plain values of each type.
    Raises ConfigError for a tool without a schema, and for one that raises what is no fault of the policy's
    (`POLICY_FAULTS`) in every call, or does not return.
    """
    refused: dict[str, str] = {}
    for phase in phases:
        environment = phase.environment
        if environment is None:
            continue
        try:
            environment.tools()
            toolbox = environment.toolbox() if isinstance(environment, ToolEnvironment) else ()
        except (TypeError, NameError) as error:  # no types, or types that are not there
            raise ConfigError(f"environment: {error}") from None
        rows = [row for found in phase.read_rows.get("train", {}).values() for row in found[:ROWS]]
        for tool in toolbox:
            if is_users(_code(tool.call)) and (why := _refused(tool, rows)):
                refused[tool.name] = why
    return refused


def _refused(tool: Tool, rows: Sequence[Row]) -> str:
    """Why none of the tried calls was carried out; "" where one was. Raises ConfigError."""
    why = ""
    tried: dict[str, Any] = {}
    try:
        with deadline(SECONDS):
            for tried in arguments_of(tool, rows):
                try:
                    shown(tool.call(**tried))
                    return ""
                except POLICY_FAULTS as error:
                    why = why or f"{type(error).__name__}: {error} for {_short(tried)}"
    except OverdueError as error:
        raise ConfigError(
            f"environment: tool {tool.name!r} has not returned after {SECONDS:g} s with {_short(tried)}"
            f"{f' (at {error})' if str(error) else ''}; give its waiting a timeout"
        ) from None
    except (Exception, SystemExit) as error:  # of any kind: it is the user's code
        place = user_place(error)
        raise ConfigError(
            f"environment: tool {tool.name!r} raised {type(error).__name__}: {str(error)[:200]} with "
            f"{_short(tried)}{f' ({place})' if place else ''}; ValueError, LookupError and ArithmeticError "
            "are told to the policy, any other exception ends its episode"
        ) from None
    return f"it refused all calls that were tried ({why})"


def arguments_of(tool: Tool, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Arguments that fit the tool's schema, the likeliest first; at most `TRIED`."""
    for row in rows:
        call = last_call(row.target)
        if isinstance(call, tuple) and call[0] == tool.name and not tool.problem(call[1]):
            yield call[1]
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    texts = list(dict.fromkeys(_texts(rows)))[: TRIED - 1]
    for place in range(len(texts) if properties else 1):
        yield {name: _value(properties[name], texts[place], place) for name in properties if name in required}


def _texts(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        words = re.findall(r"\w[\w'-]*", row.question)
        yield from sorted(words, key=lambda word: not word[0].isupper())  # names first
        yield row.question
        yield str(row.answer)
    yield from ("1", "a", "2024-01-31")


def _value(schema: Mapping[str, Any], text: str, place: int) -> Any:
    """The `place`-th value of a JSON type."""
    if schema.get("enum"):
        return schema["enum"][place % len(schema["enum"])]
    if schema.get("anyOf"):
        return _value(schema["anyOf"][0], text, place)
    if schema.get("type") == "array":
        return [_value(schema.get("items") or {"type": "string"}, text, place)]
    number = int(text) if re.fullmatch(r"-?\d{1,9}", text) else place + 1
    values: dict[str, Any] = {
        "integer": number, "number": float(number), "boolean": place % 2 == 0, "object": {}, "null": None,
    }  # fmt: skip
    return values.get(str(schema.get("type")), text)


def _code(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return str(code.co_filename) if code is not None else "<frozen "


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
