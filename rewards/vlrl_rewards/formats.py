"""Format rewards: thinking or not, tags counted, one box, JSON by schema, one language, no repetition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.language import share_of
from vlrl_rewards.parsing import answer_tags, boxes_in, strip_thinking, visible
from vlrl_rewards.structure import loads

_TAG = re.compile(r"</?\s*think\s*>", re.IGNORECASE)


def says_something(text: str) -> bool:
    """Whether there is a letter or a digit in it."""
    return any(char.isalnum() for char in text)


@register("think_format")
@dataclass(frozen=True, kw_only=True)
class ThinkFormat(Reward):
    """r = 1 if the text has the wanted shape, else 0. mode "think": `<think>`, thought, `</think>`, then an answer, each tag once; "no_think":
    no thinking (no tag, or one empty block) before an answer; "row": the mode that `row.meta["think"]` (true or false) asks for.

    Paper: No-Thinking-RL and Thinking-RL, arXiv:2503.16188. Edge: an answer without a letter or digit scores 0, so does an open block.
    """

    mode: Literal["think", "no_think", "row"] = "think"

    def __call__(self, rollout: Rollout) -> float:
        thinks = self.mode == "think" or (self.mode == "row" and bool(rollout.row.meta.get("think", True)))
        text = rollout.text.strip()
        tags = [tag.lower().replace(" ", "") for tag in _TAG.findall(text)]
        head, _, tail = text.partition("</think>")
        if not tags:
            return float(not thinks and says_something(text))
        if tags != ["<think>", "</think>"] or not head.startswith("<think>") or not says_something(tail):
            return 0.0
        return float(says_something(head.removeprefix("<think>")) == thinks)


@register("tag_count")
@dataclass(frozen=True, kw_only=True)
class TagCount(Reward):
    """r = share of the tags (opening and closing counted apart) that stand in the text exactly once, in the wanted order, around something.

    Paper: Open-R1 (tag count reward), after arXiv:2501.12948. Deviations: a tag out of order, or an empty block, does not count: four bare tags
    score 0.
    """

    tags: tuple[str, ...] = ("think", "answer")

    def __call__(self, rollout: Rollout) -> float:
        kept, after = 0, 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            start = rollout.text.find(opening, after) if rollout.text.count(opening) == 1 else -1
            end = rollout.text.find(closing, max(start, after)) if rollout.text.count(closing) == 1 else -1
            inside = (
                rollout.text[start + len(opening) : end] if start >= 0 and end >= 0 else rollout.text[start + len(opening) :] if start >= 0 else ""
            )
            if start >= 0 and says_something(inside):
                kept, after = kept + 1, start
            if end >= 0 and says_something(rollout.text[after:end]) and (start < 0 or says_something(inside)):
                kept, after = kept + 1, end
        return kept / (2 * len(self.tags)) if self.tags else 0.0


@register("boxed_format")
@dataclass(frozen=True, kw_only=True)
class BoxedFormat(Reward):
    r"""r = 1 if exactly one `\boxed{...}` with something in it stands outside the thinking, else 0.

    Paper: SimpleRL-Zoo, arXiv:2503.18892 (boxed answers). Edge: `\boxed{}` and `\boxed{...}` without a letter or digit score 0.
    """

    def __call__(self, rollout: Rollout) -> float:
        text = visible(rollout.text)
        found = boxes_in(text)
        return float(len(found) == 1 and says_something(text[found[0][2] : found[0][3]]))


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool, "null": type(None),
}  # fmt: skip
_KEYWORDS = frozenset(
    (
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
    )
    + ("title", "description", "$schema", "default", "examples")
)


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether `value` fits a JSON schema (the keywords of `_KEYWORDS`). Raises ValueError on a keyword that is not supported."""
    unknown = sorted(set(schema) - _KEYWORDS)
    if unknown:
        raise ValueError(f"schema: keyword {unknown[0]!r} is not supported; supported: {', '.join(sorted(_KEYWORDS))}")
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if kinds and not any(isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds):
        return False
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties", True)
        if any(key not in value for key in schema.get("required", ())) or (extra is False and any(key not in known for key in value)):
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
    """r = 1 if the answer (its last `<answer>` block, else the visible text) is one JSON value that fits `schema`, else 0.

    Paper: vlrl original. A fenced block counts as JSON. `schema` takes the common keywords of JSON Schema; empty: any object or list. Nested too
    deeply: 0.
    """

    schema: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fits({}, self.schema)

    def __call__(self, rollout: Rollout) -> float:
        text = visible(rollout.text)
        blocks = answer_tags(text)
        said = text[blocks[-1][0] : blocks[-1][1]] if blocks else text
        value = loads(said) if len(said) <= 100_000 and len(blocks) <= 1 else None
        return float(value is not None and value != {} and value != [] and fits(value, self.schema))


@register("language")
@dataclass(frozen=True, kw_only=True)
class Language(Reward):
    """r = share of the letters of the whole text (thinking too) that are of the wanted language's script; 0 where it is plainly another language.

    Paper: DeepSeek-R1 (language consistency reward), arXiv:2501.12948, sec. 2.3.2. Deviations: letters instead of words; LaTeX and tags do not count.
    Edge: no letters: 0. Units: [0, 1]. `language`: a two-letter code.
    """

    language: str = "en"

    def __call__(self, rollout: Rollout) -> float:
        return share_of(rollout.text, self.language)


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(Reward):
    """r = -penalty * (1 - unique / total) over the word n-grams of the whole text; characters stand in for words in scripts without blanks.

    Paper: Demystifying Long CoT, arXiv:2502.03373, app. (n-gram repetition penalty). Edge: fewer than n words: 0, unless nothing is said at all:
    -penalty.
    """

    n: int = 4
    penalty: float = 1.0

    def __call__(self, rollout: Rollout) -> float:
        words = re.findall(r"[^\W\d_]+|\d+|[^\w\s]", re.sub("([\u3040-\u30ff\u3400-\u9fff])", r" \1 ", rollout.text.casefold()))
        if not says_something(rollout.text):
            return -self.penalty
        total = len(words) - self.n + 1
        if total <= 0:
            return 0.0
        unique = len({tuple(words[i : i + self.n]) for i in range(total)})
        return -self.penalty * (1 - unique / total)


__all__ = ["BoxedFormat", "JsonFormat", "Language", "Repetition", "TagCount", "ThinkFormat", "fits", "strip_thinking"]
