"""What a record family is, and what the families share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
Draft = dict[str, Any]


@dataclass(frozen=True)
class RecordFamily:
    """A record family. `known` are the fields it understands; the others go to `Row.meta`."""

    name: str
    why: Callable[[Record], str]
    draft: Callable[[Record], Draft]
    known: frozenset[str]


FAMILIES: dict[str, RecordFamily] = {}


def record_family(name: str, known: Iterable[str]) -> Callable[[type], type]:
    """Class decorator: registers a class with the static methods `why` and `draft`."""

    def add(cls: Any) -> Any:
        FAMILIES[name] = RecordFamily(name, cls.why, cls.draft, frozenset(known))
        return cls

    return add


class ReadRecord(Mapping[str, Any]):
    """A record that notes which of its fields are read: a known field that a family's `draft` never reads is
    dropped."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self.record[name]
        self.read.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.record

    def __iter__(self) -> Iterator[str]:
        return iter(self.record)

    def __len__(self) -> int:
        return len(self.record)


def inside(record: Any, path: str) -> Any:
    """The value at a path of names (`extra_info.task`), which may be a name with dots; None without one."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    first, _, rest = path.partition(".")
    return inside(record[first], rest) if rest and isinstance(record, Mapping) and first in record else None


def renamed(record: Record, fields: Mapping[str, str]) -> dict[str, Any]:
    """The record with its columns under the names of `fields` {theirs: ours}; theirs may be a path into
    nested columns (`pos.question`), whose value is copied."""
    nested = {ours: found for theirs, ours in fields.items() if (found := inside(record, theirs)) is not None}
    return {fields.get(name, name): value for name, value in record.items()} | nested


def has(record: Record, *names: str) -> bool:
    """Whether all fields are there."""
    return all(name in record for name in names)


def as_list(value: Any) -> list[Any]:
    """None -> [], one -> [one], list -> list."""
    if value is None or (isinstance(value, str) and not value):
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def as_container(value: Any) -> Any:
    """JSON text of a list or a mapping, as files without containers (CSV) hold them, as that; anything else
    as it is."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return found if isinstance(found, (list, dict)) else value
    return value


def first_list(record: Record, *names: str) -> list[Any]:
    """The first of the columns that holds anything, as a list."""
    return next((found for name in names if (found := as_list(as_container(record.get(name))))), [])


def media_columns(record: Record) -> Draft:
    """The media columns, as they are."""
    return {
        "images": first_list(record, "images", "image", "image_path", "decoded_image"),
        "videos": first_list(record, "videos", "video"),
        "audios": first_list(record, "audios", "audio"),
    }


def with_media(draft: Draft, record: Record) -> tuple[Draft, bool]:
    """A draft with the record's media columns, where they hold anything, and whether it has media."""
    found = draft | {name: media for name, media in media_columns(record).items() if media}
    return found, any(found.get(name) for name in ("images", "videos", "audios"))


def is_chat(value: Any) -> bool:
    """A list of {role, content}."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(turn, Mapping) and "role" in turn and "content" in turn for turn in value)
    )


OPENING = "opening"  # the name in `meta` of the text that begins the answer in a written-out prompt
RENDERED_TURN = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)(?:<\|im_end\|>\n?|\Z)", re.DOTALL)


def unrendered(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages of a single user message that holds a whole prompt in ChatML whose last turn, the
    assistant's, is open (SimpleRL-Zoo; Logic-RL's ends in "<think>"); else the messages as they are."""
    text = messages[0]["content"]
    if len(messages) > 1 or not isinstance(text, str):
        return messages
    turns = [{"role": found[1], "content": found[2]} for found in RENDERED_TURN.finditer(text)]
    opened = len(turns) > 1 and turns[-1]["role"] == "assistant" and not text.rstrip().endswith("<|im_end|>")
    between = RENDERED_TURN.sub("", text).strip()
    return turns if opened and not between else messages


def chat_draft(messages: Sequence[Mapping[str, Any]]) -> Draft:
    """Chat messages without the closing answer: a single user turn becomes the question, anything longer
    stays a conversation. A prompt that is written out in ChatML is read back.

    Raises ValueError for a message whose content is neither text nor a list of parts.
    """
    if not is_chat(messages):
        raise ValueError(f"its messages are {type(messages).__name__}, not a list of {{role, content}}")
    written = unrendered(messages)
    opening = str(written[-1]["content"]) if written is not messages else ""
    messages = written
    turns: list[dict[str, Any]] = []
    shown: dict[str, list[Any]] = {"images": [], "videos": [], "audios": []}
    for place, turn in enumerate(messages[:-1] if messages[-1]["role"] == "assistant" else messages):
        content = turn["content"]
        if not isinstance(content, str):
            content = _text_of_parts(content, shown, f"message {place}")
        turns.append({"role": turn["role"], "content": content})
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else ""
    media = {name: [item for item in items if item is not None] for name, items in shown.items()}
    found: Draft = {key: value for key, value in media.items() if value}
    if opening:
        found["meta"] = {OPENING: opening}
    if len(turns) == 1 and turns[0]["role"] == "user":
        return {"question": turns[0]["content"], "system": system} | found
    return {"question": "", "messages": tuple(turns), "system": system} | found


def _text_of_parts(parts: Any, shown: Mapping[str, list[Any]], where: str) -> str:
    """The text of a message's parts, with a marker for each medium; the media are added to `shown`."""
    if parts is not None and not isinstance(parts, (list, tuple)):
        raise ValueError(f"the content of {where} is {type(parts).__name__}, not text or a list of parts")
    texts = []
    for part in parts or ():
        if not isinstance(part, Mapping):
            raise ValueError(
                f"the content of {where} is a list that holds {type(part).__name__}, not mappings of type "
                "and text"
            )
        kind = part.get("type", "text")
        payload = part.get(kind) or part.get("url") or part.get("path")
        if (medium := str(kind).removesuffix("_url")) in ("image", "video", "audio"):
            held = payload["url"] if isinstance(payload, Mapping) and "url" in payload else payload
            shown[f"{medium}s"].append(held)
            texts.append(f"<{medium}>")
        else:
            texts.append(str(part.get("text", "")))
    return "".join(texts)
