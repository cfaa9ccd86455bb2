"""Tools: functions that the policy calls within a conversation, and episodes that carry out its calls.

A tool is a Python function with types and a docstring; `Tool.of` makes its schema from them. A `ToolEpisode`
reads the call in the policy's turn, checks its arguments against the schema, calls the tool, and shows what
it returns: a text, a picture, several of them, an `Observation`, or any value as JSON. A turn without a call
ends the episode.

What the policy did wrong is told to it: a call that cannot be parsed, an unknown tool, arguments of the wrong
type, and ValueError, LookupError or ArithmeticError (`POLICY_FAULTS`) raised by a tool. Any other exception
is the environment's failure.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from vlrl.plugins.episodes import Action, Episode, Observation, Picture
from vlrl.plugins.stages import Environment
from vlrl.plugins.tool_calls import STOP, last_call
from vlrl.types import Media

POLICY_FAULTS = (ValueError, LookupError, ArithmeticError)
_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
}
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


@dataclass(frozen=True)
class Tool:
    """A function that the policy may call. `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[..., Any]

    @classmethod
    def of(cls, function: Callable[..., Any], name: str = "") -> Tool:
        """The tool that a function is. Its types give the schema, its docstring the description.

        Raises TypeError for an argument without a type, or of a type that JSON has not.
        """
        hints = get_type_hints(function)
        properties: dict[str, Any] = {}
        required = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"tool {function.__name__!r}: *{parameter.name} has no schema; name its arguments"
                )
            if parameter.name not in hints:
                raise TypeError(
                    f"tool {function.__name__!r}: argument {parameter.name!r} has no type; write "
                    f"`{parameter.name}: str`, for instance"
                )
            properties[parameter.name] = _schema(
                hints[parameter.name], f"tool {function.__name__!r}, argument {parameter.name!r}"
            )
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        schema = {"type": "object", "properties": properties, "required": required}
        return cls(name or function.__name__, inspect.getdoc(function) or "", schema, function)

    @property
    def schema(self) -> dict[str, Any]:
        """The schema in OpenAI's form, for the chat template."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }

    def problem(self, arguments: Mapping[str, Any]) -> str:
        """What is wrong with the arguments of a call, for the policy; "" for nothing."""
        properties: Mapping[str, Any] = self.parameters.get("properties") or {}
        missing = [name for name in self.parameters.get("required") or () if name not in arguments]
        unknown = (
            [name for name in arguments if name not in properties]
            if not self.parameters.get("additionalProperties")
            else []
        )
        if missing or unknown:
            said = [f"argument {name[:40]!r} is missing" for name in missing] + [
                f"there is no argument {name[:40]!r}" for name in unknown[:3]
            ]
            return f"{'; '.join(said)}. The arguments of {self.name} are {', '.join(properties) or 'none'}."
        for name, value in arguments.items():
            allowed = (properties.get(name) or {}).get("type")
            names = [allowed] if isinstance(allowed, str) else list(allowed or ())
            if names and not any(_CHECKS.get(one, lambda _: True)(value) for one in names):
                return f"argument {name[:40]!r} must be of type {' or '.join(names)}."
            choices = (properties.get(name) or {}).get("enum")
            if choices and value not in choices:
                return f"argument {name[:40]!r} must be one of {', '.join(map(str, choices))}."
        return ""


def _schema(hint: Any, where: str) -> dict[str, Any]:
    """The JSON Schema of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"type": _TYPES.get(type(inner[0]), "string"), "enum": list(inner)}
    if origin in (Union, types.UnionType):
        known = [_schema(one, where) for one in inner if one is not type(None)]
        return known[0] if len(known) == 1 else {"anyOf": known}
    if hint is Any:
        return {}
    kind = _TYPES.get(origin or hint)
    if kind is None:
        raise TypeError(
            f"{where}: JSON has no type {hint!r}; use str, int, float, bool, list, dict or Literal"
        )
    if kind == "array" and inner:
        return {"type": kind, "items": _schema(inner[0], where)}
    return {"type": kind}


def shown(result: Any) -> Observation:
    """What a tool returned as an observation with role "tool"."""
    if isinstance(result, Observation):
        return result
    parts = (
        list(result)
        if isinstance(result, (list, tuple)) and any(_picture(part) is not None for part in result)
        else [result]
    )
    media = tuple(medium for part in parts if (medium := _picture(part)) is not None)
    texts = [
        part if isinstance(part, str) else json.dumps(part, default=str, ensure_ascii=False)
        for part in parts
        if _picture(part) is None
    ]
    return Observation("\n".join(texts), media, role="tool")


def _picture(value: Any) -> Media | None:
    """The medium that a value is: ours, or a PIL image."""
    if isinstance(value, Media):
        return value
    return Picture.of(value) if hasattr(value, "convert") and hasattr(value, "tobytes") else None


class ToolEpisode(Episode):
    """An episode of tool calls. `action` is the turn whose call is carried out, for tools that need the
    pictures shown so far."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.action = Action("")

    def step(self, action: Action) -> Observation:
        self.action = action
        call = last_call(action.text)
        if call is None:
            return self.finished()
        if isinstance(call, str):
            return self.refused(call)
        name, arguments = call
        if name not in self.tools:
            return self.refused(
                f"Error: there is no tool {name[:40]!r}; the tools are {', '.join(self.tools)}."
            )
        problem = self.tools[name].problem(arguments)
        if problem:
            return self.refused(f"Error: {problem}")
        return self.called(name, arguments)

    @property
    def stateless(self) -> bool:
        return type(self) is ToolEpisode  # functions; a subclass may keep something

    def called(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Carry out a call whose arguments are checked."""
        try:
            result = self.tools[name].call(**arguments)
        except POLICY_FAULTS as error:
            return self.refused(f"Error: {type(error).__name__}: {str(error)[:500]}")
        return replace(shown(result), calls=1)

    def finished(self) -> Observation:
        """The answer to a turn without a call: the episode is over."""
        return Observation(done=True)

    @staticmethod
    def refused(message: str) -> Observation:
        """The answer to a call that could not be carried out."""
        return Observation(message, invalid=True, role="tool")


@dataclass(frozen=True, kw_only=True)
class ToolEnvironment(Environment):
    """Base of environments that are tools. A subclass has `functions`, or overrides `toolbox` (tools of one
    episode) or `episode`."""

    stops: ClassVar[tuple[str, ...]] = (STOP,)

    def functions(self) -> Sequence[Callable[..., Any]]:
        """Functions without state that the policy may call."""
        return ()

    def toolbox(self) -> Sequence[Tool]:
        """The tools."""
        return [Tool.of(function) for function in self.functions()]

    def episode(self) -> ToolEpisode:
        return ToolEpisode(self.toolbox())

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [tool.schema for tool in self.toolbox()]
