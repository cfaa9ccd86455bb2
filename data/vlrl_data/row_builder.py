"""One record to one `Row`, or a `RowError` with the reason."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image

from vlrl.plugins.registry import suggest
from vlrl.types import Clip, CoordinateSpace, Media, MediaError, Row, RowError
from vlrl_data.generators import jigsaw
from vlrl_data.media.audio import AUDIO_SUFFIXES
from vlrl_data.media.images import (
    IMAGE_SUFFIXES,
    EqualByKey,
    GeneratedImage,
    InMemoryImage,
    StoredImage,
    digest,
    image_size,
)
from vlrl_data.media.parse import MediaSettings, parse_audio, parse_image, parse_video
from vlrl_data.media.video import VIDEO_SUFFIXES
from vlrl_data.record_families import RecordFamily
from vlrl_data.record_families.answers import letter_of, options_of, to_pixels
from vlrl_data.record_families.base import Draft, ReadRecord, as_container, as_list, renamed
from vlrl_data.records import BadRecord
from vlrl_data.text_table import as_number
from vlrl_data.validation import MAX_CHARACTERS, is_box, is_labelled_boxes, validate_row

MAX_META_CHARACTERS = 100_000  # of one column, as JSON
MEDIA_SUFFIXES = {"image": IMAGE_SUFFIXES, "video": VIDEO_SUFFIXES, "audio": AUDIO_SUFFIXES - VIDEO_SUFFIXES}


@dataclass(frozen=True)
class RowOptions:
    """What a source sets for all its rows. `fields` renames columns; `task`, `rewards` and `system` replace
    what the record holds.

    `target` is the demonstration of rows that have none: a text with {answer} in it. `units` are those of the
    boxes of gold answers: pixels of the original picture, thousandths or fractions of its sides; "auto": what
    the record family has.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    question: str = ""
    task: str = ""
    rewards: tuple[str, ...] = ()
    system: str = ""
    target: str = ""
    answers: Literal["required", "optional"] = "required"
    pass_rates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    row_pixels: int = 0
    over_budget: Literal["resize", "drop"] = "resize"
    max_characters: int = MAX_CHARACTERS
    units: Literal["auto", "original", "per_mille", "unit"] = "auto"


@dataclass(frozen=True, eq=False)
class ResizedImage(EqualByKey, Media):
    """An image resized to at most `pixels` pixels. Its coordinates differ from the original's: never used for
    a row whose answer is in pixels."""

    medium: Media
    pixels: int
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        return digest("shrunk", self.medium.key, str(self.pixels))

    def load(self) -> Image.Image | Clip:
        image = self.medium.load()
        assert isinstance(image, Image.Image), image
        scale = math.sqrt(self.pixels / (image.width * image.height))
        if scale >= 1:
            return image
        return image.resize(
            (max(1, int(image.width * scale)), max(1, int(image.height * scale))), Image.Resampling.BICUBIC
        )

    def check(self) -> None:
        self.medium.check()


def size_of(medium: Media) -> tuple[int, int]:
    """Width and height of an image; of a file, only the header is read."""
    if isinstance(medium, StoredImage):
        return image_size(medium.source, medium.limits)
    loaded = medium.image if isinstance(medium, InMemoryImage) else medium.load()
    assert isinstance(loaded, Image.Image), loaded
    return loaded.size


class BuiltRow(NamedTuple):
    """A row; the columns of its record that it does not carry (known to the family but unused, or no plain
    values for `meta`); and what its reading assumed."""

    row: Row
    dropped: tuple[str, ...]
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowBuilder:
    """Builds the rows of one record family. Pure: the same record and index give the same row. `written`: the
    file has text alone (CSV), so that numbers of `meta` are read from their text."""

    family: RecordFamily
    media: MediaSettings
    options: RowOptions
    stem: str
    written: bool = False

    def __call__(self, record: Any, index: int) -> Row:
        """The row of a record. Raises RowError."""
        return self.build(record, index).row

    def build(self, record: Any, index: int) -> BuiltRow:
        """The row of a record, and what it does not carry. Raises RowError, also for media that are wrong
        without being opened."""
        if isinstance(record, (str, list)) and "" in self.family.known:
            record = {"": record}
        if not isinstance(record, Mapping):
            raise RowError(f"a record must be a mapping of fields, got {type(record).__name__}")
        record = renamed(record, self.options.fields)
        read = ReadRecord(record)
        try:
            return self._build(dict(self.family.draft(read)), read, index)
        except KeyError as error:
            raise RowError(self._without(str(error.args[0]), record)) from None
        except RecursionError:
            raise RowError("it is nested too deeply") from None
        except (MediaError, BadRecord) as error:
            raise RowError(str(error)) from None
        except (TypeError, AttributeError, ValueError, IndexError, OverflowError) as error:
            if isinstance(error, RowError):
                raise
            raise RowError(f"not a {self.family.name} record: {error}") from None

    def _without(self, name: str, record: Mapping[str, Any]) -> str:
        """What is wrong with a record that lacks a field of its family; "" stands for the whole record."""
        if not name:
            return f"{self.family.name} records are lists or paths, and this one is a mapping of fields"
        close = suggest(name, map(str, record)) if record else " It has no fields."
        return f"the field `{name}` is missing (as {self.family.name} records have).{close}"

    def _build(self, draft: Draft, record: ReadRecord, index: int) -> BuiltRow:
        options, units, own_id = self.options, draft.pop("units", "original"), draft.pop("id", None)
        units = units if options.units == "auto" else options.units
        extra = {name: value for name, value in record.record.items() if name not in self.family.known}
        self._refuse_unknown(extra)
        self._take_explicit(draft, extra)
        guessed = (*draft.pop("guessed", ()), *self._put_context_first(draft, extra), *_unseen_options(extra))
        images = tuple(parse_image(value, self.media) for value in as_list(draft.pop("images", ())))
        videos = tuple(parse_video(value, self.media) for value in as_list(draft.pop("videos", ())))
        audios = tuple(parse_audio(value, self.media) for value in as_list(draft.pop("audios", ())))
        if draft.pop("needs_puzzle", False):
            draft |= puzzle_over(images[0], str(record[""]))
            images = draft.pop("images")
        plain = {
            name: as_number(value) if self.written else value
            for name, value in extra.items()
            if _is_plain(value)
        }
        row = Row(
            id=self._id(draft.pop("id", own_id), index),
            question=draft.pop("question", "") or options.question,
            images=images,
            videos=videos,
            audios=audios,
            task=options.task or draft.pop("task", "default"),
            rewards=options.rewards or tuple(as_list(draft.pop("rewards", ()))),
            system=draft.pop("system", "") or options.system,
            meta=_mapping(draft.pop("meta", {})) | plain,
            **{
                name: value
                for name, value in draft.items()
                if name in ("answer", "target", "choices", "messages")
            },
        )
        if options.target and not row.target and row.answer is not None:
            row = replace(row, target=demonstration(options.target, row.answer))
        guessed = (*guessed, *_unseen_media(row, plain))
        validate_row(row, options.answers, options.max_characters)
        if row.id in options.pass_rates:
            row = replace(row, meta={**row.meta, "pass_rate": options.pass_rates[row.id]["pass_rate"]})
        known, read = self.family.known, record.read
        unread = [
            name
            for name, value in record.record.items()
            if name in known and name not in read and value not in (None, "", [], {})
        ]
        return BuiltRow(
            self._within_budget(self._in_pixels(row, units)),
            (*unread, *sorted(map(str, set(extra) - set(plain)))),
            guessed,
        )

    def _refuse_unknown(self, extra: Mapping[str, Any]) -> None:
        if extra and self.family.name == "vlrl":
            name = next(iter(extra))
            raise RowError(
                f"unknown column {name!r}.{suggest(str(name), self.family.known)} Put columns of your own "
                "into `meta`."
            )

    def _take_explicit(self, draft: Draft, extra: dict[str, Any]) -> None:
        """A record's own `task` and `target` columns, and columns that `fields` names like fields of a row,
        go before what its family infers."""
        explicit = {"answer", "audios", "choices", "id", "images", "question", "system", "videos"}
        named = explicit & {*self.options.fields.values()}
        for name in ("task", "target", *sorted(named)):
            value = extra.pop(name, None)
            if value is None or value == "":
                continue
            if name == "choices":
                value, keys = options_of(value)
                draft["answer"] = letter_of(draft.get("answer"), keys)
            draft[name] = as_container(value) if name in ("images", "videos", "audios") else value

    @staticmethod
    def _put_context_first(draft: Draft, extra: dict[str, Any]) -> tuple[str, ...]:
        """A text in `context` or `passage` stands before the question; returns what was assumed."""
        for name in ("context", "passage"):
            text, question = extra.get(name), draft.get("question")
            if isinstance(text, str) and text.strip() and isinstance(question, str) and question:
                del extra[name]
                if text.strip() not in question:
                    draft["question"] = f"{text.strip()}\n\n{question}"
                    return (f"`{name}` stands before the question (`fields: {{{name}: note}}` keeps it out)",)
        return ()

    def _id(self, own: Any, index: int) -> str:
        """The record's own id; a bare number gets the file's stem, because numbers repeat between files."""
        if own is None or (own == "" and (self.written or self.family.name != "vlrl")):
            return f"{self.stem}-{index}"
        if not isinstance(own, (str, int, float)) or isinstance(own, bool):
            raise RowError(f"its id is {type(own).__name__} {str(own)[:40]!r}, not text or a number")
        return f"{self.stem}-{own}" if str(own).isdigit() and self.family.name != "vlrl" else str(own)

    def _in_pixels(self, row: Row, units: str) -> Row:
        if units == "original" or not row.images:
            return row
        size = size_of(row.images[0])
        return replace(
            row,
            answer=to_pixels(
                row.answer, CoordinateSpace(size, size, "unit" if units == "unit" else "per_mille")
            ),
        )

    def _within_budget(self, row: Row) -> Row:
        budget = self.options.row_pixels
        if not budget or not row.images:
            return row
        pixels = [width * height for width, height in map(size_of, row.images)]
        if sum(pixels) <= budget:
            return row
        reason = f"its images have {sum(pixels)} pixels, over the budget of {budget} (row_pixels)"
        if self.options.over_budget == "drop":
            raise RowError(reason)
        if is_box(row.answer) or is_labelled_boxes(row.answer):
            raise RowError(f"{reason}, and cannot be resized because its answer is in pixels")
        shares = [budget * count // sum(pixels) for count in pixels]
        return replace(
            row, images=tuple(ResizedImage(medium, share) for medium, share in zip(row.images, shares))
        )


def demonstration(text: str, answer: Any) -> str:
    """`text` with the gold answer for {answer}: a text or number as it is, lists as JSON. RowError for boxes:
    their units differ by policy."""
    if is_box(answer) or is_labelled_boxes(answer):
        raise RowError(
            "target: a demonstration of boxes depends on the policy's coordinates; write it into the "
            "column `target`"
        )
    return text.replace(
        "{answer}",
        str(answer) if isinstance(answer, (str, int, float)) else json.dumps(answer, ensure_ascii=False),
    )


def puzzle_over(medium: Media, name: str) -> dict[str, Any]:
    """Jigsaw-R1's records are bare images: the 2 x 1 `full` puzzle over one, its order a function of the
    image's name."""
    rng = random.Random(f"jigsaw {name}")
    puzzle = jigsaw.Puzzle(2, 1, jigsaw.random_order(rng, 2))
    image = GeneratedImage(jigsaw.draw_medium, (medium, 2, 1, puzzle.order))
    return jigsaw.ask(puzzle, "full", rng, (0, 0)) | {"images": (image,), "id": name}


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RowError(f"its meta is {type(value).__name__}, not a mapping")
    return dict(value)


def _unseen_options(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """A notice for options that stay in `meta`."""
    return tuple(
        f"`{name}` stays in `meta`, where no prompt shows it (`fields: {{{name}: choices}}` takes it)"
        for name in ("choices", "options")
        if isinstance(extra.get(name), (list, tuple, Mapping)) and len(extra[name]) > 1
    )


def _unseen_media(row: Row, extra: Mapping[str, Any]) -> tuple[str, ...]:
    """A notice for columns that name media files, of rows without media."""
    if row.media:
        return ()
    return tuple(
        f"`{name}` stays in `meta`, where no model sees it, and names {kind}s (`fields: {{{name}: {kind}}}` "
        "takes them)"
        for name, value in extra.items()
        for kind, suffixes in MEDIA_SUFFIXES.items()
        if isinstance(value, str) and Path(value[-200:]).suffix.lower() in suffixes
    )


def _is_plain(value: Any) -> bool:
    """Whether a column can go to `meta`: JSON of moderate size."""
    try:
        return len(json.dumps(value)) < MAX_META_CHARACTERS
    except (TypeError, ValueError, RecursionError):
        return False
