"""What a chat template does with tools, found by trying it; and our own form of what it drops.

Some templates ignore `tools=`, some drop the calls in a conversation, print the role "tool" as it is, or lose
a tool's picture. Such a template is found by rendering a schema, a call and a result and looking for them.
Then the schemas are written into the system text, and a result is a user turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

_NAME, _RESULT = "probe_tool_7c41", "probe-result-7c41"
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_SCHEMA = {
    "name": _NAME,
    "description": "x",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


@dataclass(frozen=True)
class ToolTemplate:
    """`schemas`: `tools=` is rendered, with calls in the form that we read. `results`: messages with role
    "tool" are, with their pictures.

    `system`: a system message is rendered.
    """

    schemas: bool = False
    results: bool = False
    system: bool = True


def probe(apply: Callable[..., str], image: str, multimodal: bool) -> ToolTemplate:
    """Try a chat template.

    Args:
        apply: `apply(messages, tools=...)` renders a conversation.
        image: The placeholder of a picture; "" for a template without pictures.
        multimodal: Whether contents are lists of parts.
    """

    def content(text: str) -> Any:
        return [{"type": "text", "text": text}] if multimodal else text

    tools = [{"type": "function", "function": _SCHEMA}]
    call = {"type": "function", "function": {"name": _NAME, "arguments": {"place": "north"}}}
    question = {"role": "user", "content": content("q")}
    called = {"role": "assistant", "content": content(""), "tool_calls": [call]}
    shown: Any = [{"type": "image"}, *content(_RESULT)] if image else content(_RESULT)
    result = {"role": "tool", "name": _NAME, "content": shown}
    try:
        system = _RESULT in apply([{"role": "system", "content": content(_RESULT)}, question])
    except (ValueError, TypeError, TemplateError):  # a template without system messages
        system = False
    try:
        text = apply([question, called, result], tools=tools)
        bare = apply([question, called, result])
    except (ValueError, TypeError, TemplateError):  # a template that knows no role "tool"
        return ToolTemplate(system=system)
    head, _, tail = (
        text.rpartition("</tools>") if "</tools>" in text else (text, "", text)
    )  # Qwen's words before the schemas have the tags too
    schemas = _NAME in head and '"place"' in head and any(map(_is_our_call, _CALL.findall(tail)))
    aware = schemas and not re.search(r"(<\|im_start\|>|<\|)tool\b", bare)
    return ToolTemplate(schemas, aware and _RESULT in text and (not image or image in text), system)


def _is_our_call(text: str) -> bool:
    try:
        call = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(call, dict) and call.get("name") == _NAME and call.get("arguments") == {"place": "north"}
    )


def tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], system: bool = True
) -> list[Any]:
    """The messages with the schemas of tools at the end of the system message, which is made where there is
    none.

    Without `system` they stand at the beginning of the first message.
    """
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        "# Tools\n\nThese functions can be called, one JSON schema per "
        f"line:\n<tools>\n{schemas}\n</tools>\n\n"
        'To call one, write <tool_call>{"name": "its name", "arguments": {...}}</tool_call> and stop. The '
        "next message is its result."
    )
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        content = first["content"]
        more = (
            f"{content}\n\n{text}"
            if isinstance(content, str)
            else [*content, {"type": "text", "text": f"\n\n{text}"}]
        )
        return [{**first, "content": more}, *messages[1:]]
    if system:
        return [{"role": "system", "content": [{"type": "text", "text": text}]}, *messages]
    first, content = messages[0], messages[0]["content"]
    return [
        {
            **first,
            "content": f"{text}\n\n{content}"
            if isinstance(content, str)
            else [{"type": "text", "text": f"{text}\n\n"}, *content],
        },
        *messages[1:],
    ]


def results_as_user_turns(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages with user turns in place of tools' results."""
    return [{**m, "role": "user"} if m["role"] == "tool" else m for m in messages]


def strings_of(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with `change` applied to every text in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): strings_of(item, change) for key, item in value.items()}
    return [strings_of(item, change) for item in value] if isinstance(value, (list, tuple)) else value
