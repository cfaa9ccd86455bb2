"""A format reward for JSON that fits a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.format.structure import loads
from vlrl_rewards.parsing import answer_tags, visible

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool,
    "null": type(None),
}  # fmt: skip
_KEYWORDS = frozenset((
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems",
    "maxItems", "minLength", "maxLength",
    "minimum", "maximum", "title", "description", "$schema", "default", "examples",
))  # fmt: skip


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether `value` fits a JSON schema (the keywords of `_KEYWORDS`). Raises ValueError on a keyword that
    is not supported."""
    unknown = sorted(set(schema) - _KEYWORDS)
    if unknown:
        raise ValueError(
            f"schema: keyword {unknown[0]!r} is not supported; supported: {', '.join(sorted(_KEYWORDS))}"
        )
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if kinds and not any(
        isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
        for kind in kinds
    ):
        return False
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties", True)
        if any(key not in value for key in schema.get("required", ())) or (
            extra is False and any(key not in known for key in value)
        ):
            return False
        others = extra if isinstance(extra, Mapping) else {}
        return all(fits(child, known.get(key, others)) for key, child in value.items())
    if isinstance(value, list):
        right_size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return right_size and all(fits(child, schema.get("items", {})) for child in value)
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    if isinstance(value, (int, float)):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


@register("json_format")
@dataclass(frozen=True, kw_only=True)
class JsonFormat(Reward):
    """JSON format reward.

        r = 1[the answer is one JSON value that fits `schema`]

    The answer is the last `<answer>` block, else the visible text.
    Paper: vlrl original. A fenced block is read as JSON. `schema` supports the common keywords of JSON
    Schema; empty: any object or list. Edge: too deeply nested, several answer blocks: 0.
    """

    reads_answer: ClassVar[bool] = False
    schema: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fits({}, self.schema)

    def __call__(self, rollout: Rollout) -> float:
        text = visible(rollout.text)
        blocks = answer_tags(text)
        said = text[blocks[-1][0] : blocks[-1][1]] if blocks else text
        value = loads(said) if len(said) <= 100_000 and len(blocks) <= 1 else None
        return float(value is not None and value != {} and value != [] and fits(value, self.schema))
