"""Prompts of records: the suite's wording and media, or a variant of it for a score floor or an audit (no
picture, wrong picture, moved options)."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.eval.expressions import evaluate, render
from vlrl.eval.media import as_media
from vlrl.eval.records import SuiteData
from vlrl.eval.scorer import Record
from vlrl.eval.suite import Suite
from vlrl.plugins.registry import ConfigError, suggest
from vlrl.types import Media, MediaError, Message, Prompt, Row

THINKING = (
    "First reason inside <think> </think> tags, then give the final answer inside <answer> </answer> tags."
)
PROTOCOLS = ("direct", "thinking")

RecordMedia = tuple[tuple[Media, ...], tuple[Media, ...]]  # (pictures, videos)


@dataclass(frozen=True)
class EvalPrompt:
    """The prompt of one record, and the record whose gold answer counts (it differs from the raw one where a
    variant moved the options)."""

    id: str
    record: Record
    prompt: Prompt


def media_of(data: SuiteData, record: Record) -> RecordMedia:
    """(pictures, videos) of a record, in the order of the suite's expressions. Raises MediaError."""
    spec = data.suite.media
    images = [m for text in spec.images for m in as_media(evaluate(text, record), data.folder, "image")]
    videos = [
        m for text in spec.videos for m in as_media(evaluate(text, record), data.folder, "video", spec.frames)
    ]
    return tuple(images), tuple(videos)


def make_prompt(row: Row, text: str, protocol: str) -> Prompt:
    """A chat prompt: media first, then the text; the thinking protocol adds its instruction."""
    whole = f"{text}\n{THINKING}" if protocol == "thinking" else text
    content = (
        [{"type": "image"} for _ in row.images]
        + [{"type": "video"} for _ in row.videos]
        + [{"type": "text", "text": whole}]
    )
    system: list[Message] = [{"role": "system", "content": row.system}] if row.system else []
    return Prompt(row, (*system, {"role": "user", "content": content}), row.images, row.videos)


def build_prompt(
    data: SuiteData, number: int, variant: str = "plain", protocol: str = "direct", text: str | None = None
) -> EvalPrompt:
    """The prompt of record `number`.

    Args:
        data: The suite and its records.
        number: The record's place.
        variant: A name of `VARIANTS`, with a count where it takes one: "permuted1" rotates the options by
            one.
        protocol: "direct" or "thinking".
        text: Replaces the suite's wording.

    Raises:
        ConfigError: The variant is unknown, or the suite cannot be varied in this way.
        MediaError: A picture or video cannot be read.
    """
    name = variant.rstrip("0123456789")
    if name not in VARIANTS:
        raise ConfigError(f"variant: no variant {variant!r}.{suggest(name, VARIANTS)}")
    record, (images, videos) = VARIANTS[name](data, number, int(variant[len(name) :] or 1))
    suite = data.suite
    identity = suite.identity(data.records[number], number)
    question = suite.text(record) if text is None else text
    row = Row(
        id=f"{suite.name}/{identity}",
        question=question,
        answer=suite.gold(record),
        images=images,
        videos=videos,
        choices=suite.options(record),
        task=suite.name,
        system=render(suite.system, record) if suite.system else "",
    )
    return EvalPrompt(identity, record, make_prompt(row, question, protocol))


def check_first_rows(data: SuiteData, protocol: str = "direct", count: int = 3) -> None:
    """Build the prompts of the first rows, so that a missing column or a wrong media folder is found before a
    model is loaded.

    A later row that is broken fails alone, during the run. Raises ConfigError with the suite, the row's id,
    the expression and the row's columns.
    """
    unreadable: list[str] = []
    rows = range(min(count, len(data)))
    for number in rows:
        try:
            build_prompt(data, number, protocol=protocol)
        except MediaError as error:
            unreadable.append(str(error))
        except ConfigError as error:
            read_by = data.suite.file or f"suite {data.suite.name!r}"
            raise ConfigError(
                f"suite {data.suite.name!r}, row {number + 1}: {error}; add what it lacks, or change the "
                f"expression in {read_by}"
            ) from None
    if unreadable and len(unreadable) == len(rows):
        raise ConfigError(
            f"suite {data.suite.name!r}: the media of the first {len(rows)} rows cannot be read; row 1: "
            f"{unreadable[0]}"
        )


def sample_seed(seed: int, suite: str, identity: str, sample: int) -> int:
    """The random seed (31 bits) of one sample. It depends only on its arguments, not on when or by which
    process the sample is generated."""
    digest = hashlib.sha256(f"{seed}\x00{suite}\x00{identity}\x00{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF


# --- variants -----------------------------------------------------------------------------------------------


def _plain(data: SuiteData, number: int, shift: int) -> tuple[Record, RecordMedia]:
    return data.records[number], media_of(data, data.records[number])


def _blind(data: SuiteData, number: int, shift: int) -> tuple[Record, RecordMedia]:
    return data.records[number], ((), ())


def _wrong_picture(data: SuiteData, number: int, shift: int) -> tuple[Record, RecordMedia]:
    """The media of the next record of another cluster. Raises ConfigError where all records share one
    cluster."""
    suite, count = data.suite, len(data)
    own = suite.cluster_of(data.records[number], number)
    for step in range(1, count):
        other = (number + step) % count
        if suite.cluster_of(data.records[other], other) != own:
            return data.records[number], media_of(data, data.records[other])
    raise ConfigError(
        f"suite {suite.name!r}: variant wrong_picture needs rows with different media, and all {count} "
        "share one"
    )


def _permuted(data: SuiteData, number: int, shift: int) -> tuple[Record, RecordMedia]:
    return rotate_options(data.suite, data.records[number], shift), media_of(data, data.records[number])


VARIANTS: dict[str, Callable[[SuiteData, int, int], tuple[Record, RecordMedia]]] = {
    "plain": _plain,
    "blind": _blind,
    "wrong_picture": _wrong_picture,
    "permuted": _permuted,
}


def has_media(data: SuiteData) -> bool:
    """Whether the suite's prompts show pictures or videos."""
    return bool(data.suite.media.images or data.suite.media.videos)


def variant_applies(data: SuiteData, variant: str) -> bool:
    """Whether a variant changes anything for a suite."""
    return (
        has_media(data)
        if variant in ("blind", "wrong_picture")
        else variant == "plain" or bool(data.suite.choices)
    )


def variant_data(data: SuiteData, variant: str) -> SuiteData:
    """The records with the gold answers of a variant: those of "permuted" move with the options."""
    if not variant.startswith("permuted"):
        return data
    shift = int(variant[len("permuted") :] or 1)
    return SuiteData(
        data.suite,
        [rotate_options(data.suite, record, shift) for record in data.records],
        data.origin,
        data.folder,
    )


_LABEL = re.compile(r"^\s*[\(\[]?([A-Z])[\.\):\]]\s*")


def _split_label(choice: str) -> tuple[str, str]:
    """("A. ", "lamp") of "A. lamp"; ("", choice) of an option without a label."""
    match = _LABEL.match(choice)
    return (match.group(0), choice[match.end() :]) if match else ("", choice)


def rotate_options(suite: Suite, record: Record, shift: int = 1) -> dict[str, Any]:
    """The record with its options rotated by `shift` places, and its gold letter with them; option labels
    stay in place.

    An open question is returned unchanged. Raises ConfigError where the options or the gold answer are not
    plain fields of the record.
    """
    choices = suite.options(record)
    if len(choices) < 2:
        return dict(record)
    field, answer = _plain_field(suite.choices, record), _plain_field(suite.answer, record)
    if field is None or answer is None or not isinstance(record[field], (list, tuple)):
        raise ConfigError(
            f"suite {suite.name!r}: options cannot be permuted, because `choices` and `answer` are not "
            "plain fields of its rows"
        )
    count = len(choices)
    order = [
        (place - shift) % count for place in range(count)
    ]  # the option now at `place` was at order[place]
    parts = [_split_label(str(choice)) for choice in record[field]]
    moved = [parts[place][0] + parts[old][1] for place, old in enumerate(order)]
    changes: dict[str, Any] = {field: moved}
    gold = str(record[answer]).strip()
    letter = gold.strip("()")
    if (
        len(letter) == 1
        and letter in string.ascii_uppercase[:count]
        and gold not in [str(choice) for choice in choices]
    ):
        changes[answer] = gold.replace(
            letter, string.ascii_uppercase[order.index(string.ascii_uppercase.index(letter))]
        )
    for name, value in record.items():  # a field that holds the whole prompt as text repeats the options
        if (
            isinstance(value, str)
            and name not in (field, answer)
            and value.count("\n")
            and all(str(c) in value for c in record[field])
        ):
            changes[name] = _replace_options(value, [str(choice) for choice in record[field]], moved)
    return {**record, **changes}


def _replace_options(text: str, old: list[str], new: list[str]) -> str:
    """The text with its lines that end in an old option replaced in order; unchanged unless every option is
    found."""
    lines = text.split("\n")
    place = 0
    for number, line in enumerate(lines):
        if place < len(old) and line.endswith(old[place]) and len(line) <= len(old[place]) + 5:
            lines[number] = line[: len(line) - len(old[place])] + new[place]
            place += 1
    return "\n".join(lines) if place == len(old) else text


def _plain_field(expression: str, record: Mapping[str, Any]) -> str | None:
    """The field that an expression like `row.answer` names; None for any other expression."""
    match = re.fullmatch(r"\s*row\.(\w+)\s*", expression)
    return match.group(1) if match and match.group(1) in record else None
