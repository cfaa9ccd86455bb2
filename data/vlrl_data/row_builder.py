"""One record to one `Row`, or a `RowError` that says what is wrong with it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from PIL import Image

from vlrl.registry import suggest
from vlrl.types import Clip, Media, MediaError, Row, RowError, Space
from vlrl_data import anymedia
from vlrl_data.answers import scaled
from vlrl_data.anymedia import Place
from vlrl_data.families import Family, is_box, is_boxes
from vlrl_data.generators import jigsaw
from vlrl_data.media import Made, Picture, PilImage, _ByKey, digest, image_size
from vlrl_data.records import BadRecord

MARKERS = ("<image>", "<video>")


@dataclass(frozen=True)
class Options:
    """What a source sets for all its rows. `fields` renames columns; `task`, `rewards` and `system` replace what the record says."""

    fields: Mapping[str, str] = field(default_factory=dict)
    question: str = ""
    task: str = ""
    rewards: tuple[str, ...] = ()
    system: str = ""
    answers: Literal["required", "optional"] = "required"
    rates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    row_pixels: int = 0
    over_budget: Literal["resize", "drop"] = "resize"


@dataclass(frozen=True, eq=False)
class Shrunk(_ByKey, Media):
    """A picture of at most `pixels` pixels. Its coordinates are its own: never used for a row whose answer is in pixels."""

    medium: Media
    pixels: int
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        return digest("shrunk", self.medium.key, str(self.pixels))

    def load(self) -> Image.Image | Clip:
        picture = self.medium.load()
        assert isinstance(picture, Image.Image), picture
        scale = math.sqrt(self.pixels / (picture.width * picture.height))
        return (
            picture
            if scale >= 1
            else picture.resize((max(1, int(picture.width * scale)), max(1, int(picture.height * scale))), Image.Resampling.BICUBIC)
        )

    def check(self) -> None:
        self.medium.check()


def size_of(medium: Media) -> tuple[int, int]:
    """Width and height of a picture; files are read no further than their header."""
    if isinstance(medium, Picture):
        return image_size(medium.source, medium.limits)
    loaded = medium.image if isinstance(medium, PilImage) else medium.load()
    assert isinstance(loaded, Image.Image), loaded
    return loaded.size


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of one record family. Pure: the same record and index give the same row."""

    family: Family
    place: Place
    options: Options
    stem: str

    def __call__(self, record: Any, index: int) -> Row:
        """Raises RowError (also for media that can be seen to be wrong without opening them)."""
        record = {"": record} if isinstance(record, str) else record
        if not isinstance(record, Mapping):
            raise RowError(f"a record must be a mapping of fields, got {type(record).__name__}")
        record = {self.options.fields.get(name, name): value for name, value in record.items()}
        try:
            draft = self.family.draft(record)
            return self._row(dict(draft), record, index)
        except KeyError as error:
            close = suggest(str(error.args[0]), record)
            raise RowError(f"the field {error} is missing (as {self.family.name} records have).{close}") from None
        except (MediaError, BadRecord) as error:
            raise RowError(str(error)) from None
        except (TypeError, AttributeError, ValueError, IndexError) as error:
            if isinstance(error, RowError):
                raise
            raise RowError(f"not a {self.family.name} record: {error}") from None

    def _row(self, draft: dict[str, Any], record: Mapping[str, Any], index: int) -> Row:
        options, units, own_id = self.options, draft.pop("units", "original"), draft.pop("id", None)
        puzzle = draft.pop("needs_puzzle", False)
        extra = {name: value for name, value in record.items() if name not in self.family.known}
        if extra and self.family.name == "vlrl":
            name = next(iter(extra))
            raise RowError(f"unknown column {name!r}.{suggest(name, self.family.known)} Put columns of your own into `meta`.")
        images = tuple(anymedia.image(value, self.place) for value in draft.pop("images", ()))
        videos = tuple(anymedia.video(value, self.place) for value in draft.pop("videos", ()))
        if puzzle:
            draft |= puzzle_over(images[0], str(record[""]))
            images = draft.pop("images")
        meta = dict(draft.pop("meta", {})) | {name: value for name, value in extra.items() if _is_plain(value)}
        row = Row(
            id=self._id(draft.pop("id", own_id), index),
            question=_text(draft.pop("question", "") or options.question, "question"),
            images=images,
            videos=videos,
            task=options.task or _task(str(draft.pop("task", "default")), record),
            rewards=options.rewards or tuple(draft.pop("rewards", ())),
            system=_text(draft.pop("system", ""), "system") or options.system,
            meta=meta,
            **{name: value for name, value in draft.items() if name in ("answer", "target", "choices", "messages")},
        )
        self._refuse(row)
        if row.id in self.options.rates:
            row = replace(row, meta={**row.meta, "pass_rate": self.options.rates[row.id]["pass_rate"]})
        return self._within_budget(self._in_pixels(row, units))

    def _id(self, own: Any, index: int) -> str:
        """The record's own id; a bare number says too little where several files meet."""
        if own is None:
            return f"{self.stem}-{index}"
        return f"{self.stem}-{own}" if str(own).isdigit() and self.family.name != "vlrl" else str(own)

    def _refuse(self, row: Row) -> None:
        if row.answer is None and self.options.answers == "required":
            raise RowError("it has no answer (set `answers: optional` if none is meant)")
        if isinstance(row.answer, float) and not math.isfinite(row.answer):
            raise RowError(f"its answer is {row.answer}")
        if not row.question.strip() and not row.messages:
            raise RowError("it has no question")
        texts = [row.question, *(str(m["content"]) for m in row.messages if m["role"] != "assistant")]
        for marker, media in zip(MARKERS, (row.images, row.videos)):
            count = sum(text.count(marker) for text in texts)
            if count not in (0, len(media)):
                raise RowError(f"it has {count} {marker} markers for {len(media)} {media[0].kind + 's' if media else 'such media'}")

    def _in_pixels(self, row: Row, units: str) -> Row:
        if units == "original" or not row.images:
            return row
        size = size_of(row.images[0])
        return replace(row, answer=scaled(row.answer, Space(size, size, units)))  # type: ignore[arg-type]

    def _within_budget(self, row: Row) -> Row:
        budget = self.options.row_pixels
        if not budget or not row.images:
            return row
        pixels = [width * height for width, height in map(size_of, row.images)]
        if sum(pixels) <= budget:
            return row
        says = f"its pictures have {sum(pixels)} pixels, over the budget of {budget} (row_pixels)"
        if self.options.over_budget == "drop":
            raise RowError(says)
        if is_box(row.answer) or is_boxes(row.answer):
            raise RowError(f"{says}, and cannot be resized because its answer is in pixels")
        shares = [budget * count // sum(pixels) for count in pixels]
        return replace(row, images=tuple(Shrunk(medium, share) for medium, share in zip(row.images, shares)))


def puzzle_over(medium: Media, name: str) -> dict[str, Any]:
    """Jigsaw-R1's records are bare pictures: the 2 x 1 `full` puzzle over one, its order a function of the picture's name."""
    rng = random.Random(f"jigsaw {name}")
    puzzle = jigsaw.Puzzle(2, 1, jigsaw.order_of(rng, 2))
    picture = Made(jigsaw.draw_medium, (medium, 2, 1, puzzle.order))
    return jigsaw.ask(puzzle, "full", rng, (0, 0)) | {"images": (picture,), "id": name}


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"its {name} is {type(value).__name__}, not text")
    return value


def _task(found: str, record: Mapping[str, Any]) -> str:
    own = record.get("task")
    return own if found == "default" and isinstance(own, str) and own else found


def _is_plain(value: Any) -> bool:
    try:
        return len(json.dumps(value)) < 100_000
    except (TypeError, ValueError):
        return False
