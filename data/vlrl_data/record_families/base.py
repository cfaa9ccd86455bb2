"""The record families of the field: how each is recognised from its fields, and how its records become rows.

A recogniser gives the reason ("it has `conversations` of {from, value}") or "". The first that gives one is chosen: special ones come first.
A converter gives a draft: values for `Row`, with media as the dataset has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.registry import ConfigError, suggest

Record = Mapping[str, Any]
Draft = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A record family. `known` are the fields it understands; the others go to `Row.meta`."""

    name: str
    why: Callable[[Record], str]
    draft: Callable[[Record], Draft]
    known: frozenset[str]


FAMILIES: dict[str, Family] = {}


def family(name: str, known: Iterable[str]) -> Callable[[type], type]:
    """Class decorator: a class with static methods `why` and `draft`."""

    def add(cls: Any) -> Any:
        FAMILIES[name] = Family(name, cls.why, cls.draft, frozenset(known))
        return cls

    return add


def table() -> dict[str, Family]:
    """All families, special ones before general ones."""
    for module in ("chat", "problem"):
        importlib.import_module(f"vlrl_data.families.{module}")
    return FAMILIES


def recognise(record: Any) -> tuple[Family, str]:
    """The family of a record and why. Raises ConfigError with its fields if none fits."""
    if isinstance(record, str):
        record = {"": record}
    if not isinstance(record, Mapping):
        raise ConfigError(f"a record must be a mapping of fields, got {type(record).__name__}")
    for item in table().values():
        if reason := item.why(record):
            return item, reason
    fields = ", ".join(sorted(record))
    raise ConfigError(
        f"format: no record family has the fields {fields}; rename them with `fields: {{yours: ours}}`. Families: {', '.join(table())}."
    )


def by_name(name: str) -> Family:
    """A family by its name. Raises ConfigError."""
    if name not in table():
        raise ConfigError(f"format: no record family {name!r}.{suggest(name, ['auto', *table()])}")
    return FAMILIES[name]


def has(record: Record, *names: str) -> bool:
    """All fields are there."""
    return all(name in record for name in names)


def as_list(value: Any) -> list[Any]:
    """None -> [], one -> [one], list -> list."""
    if value is None or (isinstance(value, str) and not value):
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def media_of(record: Record) -> Draft:
    """`image`, `images`, `video` and `videos` columns, as they are."""
    images = as_list(record.get("images")) or as_list(record.get("image")) or as_list(record.get("image_path"))
    return {"images": images, "videos": as_list(record.get("videos")) or as_list(record.get("video"))}


def is_chat(value: Any) -> bool:
    """A list of {role, content}."""
    return (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(turn, Mapping) and "role" in turn and "content" in turn for turn in value)
    )


def is_box(value: Any) -> bool:
    """[x1, y1, x2, y2]."""
    return isinstance(value, list) and len(value) == 4 and all(isinstance(item, (int, float)) for item in value)


def is_boxes(value: Any) -> bool:
    """A list of {"bbox_2d": ...} or {"Position": ...}."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and {"bbox_2d", "Position", "bbox"} & set(item) for item in value)


def chat_draft(messages: Sequence[Mapping[str, Any]]) -> Draft:
    """Chat messages without the closing answer: a lone user turn becomes the question, anything longer stays a conversation."""
    turns, images, videos = [], [], []
    for turn in messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages:
        content = turn["content"]
        if not isinstance(content, str):
            texts = []
            for item in content or []:
                kind = item.get("type", "text")
                payload = item.get(kind) or item.get("url") or item.get("path")
                if kind in ("image", "image_url", "video"):
                    (videos if kind == "video" else images).extend([payload["url"] if isinstance(payload, Mapping) and "url" in payload else payload])
                    texts.append("<video>" if kind == "video" else "<image>")
                else:
                    texts.append(str(item.get("text", "")))
            content = "".join(texts)
        turns.append({"role": turn["role"], "content": content})
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else ""
    media = {"images": [i for i in images if i is not None], "videos": [v for v in videos if v is not None]}
    if len(turns) == 1 and turns[0]["role"] == "user":
        return {"question": turns[0]["content"], "system": system} | {key: value for key, value in media.items() if value}
    return {"question": "", "messages": tuple(turns), "system": system} | {key: value for key, value in media.items() if value}
