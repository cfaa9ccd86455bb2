"""Drawn documents: a question with its evidence, the fields of a form, a line of text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.drawn_text import font, write
from vlrl_data.lab.base import IN_PIXELS, GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

FIELDS = {
    "name": ("Ada Brown", "Ben Clark", "Cleo Ford", "Dan Hill", "Eva Moss", "Finn Reed"),
    "city": ("Oslo", "Lima", "Cairo", "Paris", "Quito", "Delhi"),
    "date": ("3 May 2021", "9 July 2022", "14 March 2020", "27 June 2023"),
    "room": ("A12", "B07", "C31", "D18", "E25"),
    "total": ("120", "45", "310", "78", "96"),
}
WORDS = ("harbour", "winter", "copper", "garden", "silver", "market", "bridge", "candle", "forest", "window")
ASKS = ("document", "extraction", "ocr")
SIZE, TEXT, LINE = (224, 168), 16, 28  # of a document in pixels, of its letters, of a line
Lines = tuple[tuple[int, int, str], ...]  # left, top, text


def draw_document(lines: Lines) -> Image.Image:
    """Lines of text on white."""
    image = Image.new("RGB", SIZE, (252, 252, 248))
    pen = ImageDraw.Draw(image)
    pen.rectangle((2, 2, SIZE[0] - 3, SIZE[1] - 3), outline=(150, 150, 150))
    for left, top, text in lines:
        write(pen, (left, top), text, TEXT)
    return image


def text_box(left: int, top: int, before: str, text: str) -> list[int]:
    """The box of `text` in a line that starts with `before`, in pixels."""
    x1 = left + round(font(TEXT).getlength(before))
    return [x1, top, min(SIZE[0], x1 + round(font(TEXT).getlength(text)) + 1), min(SIZE[1], top + TEXT + 4)]


@register("gen_document")
@dataclass(frozen=True, kw_only=True)
class GenDocument(GeneratedSource):
    """Questions about a drawn form or line of text. `ask` names them; each is a task of its own:

        document     the value of a field and its box: {"answer": text, "bbox": [x1, y1, x2, y2]}
        extraction   all fields as one JSON object: {"name": ..., "city": ...}
        ocr          the words of a line

    Paper: the tasks of DocThinker (arXiv:2508.08589), Medical VIE (arXiv:2506.13363) and Perception-R1
    (arXiv:2504.07954), on drawn text. Rewards: `evidence`, `extraction`, `ocr`. Units: pixels of the picture.
    Harder with more `fields` and `words`.
    """

    ask: tuple[str, ...] = ("document",)
    fields: int = 4
    words: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.ask:
            if name not in ASKS:
                raise ConfigError(f"ask: {name!r} is unknown. Known: {', '.join(ASKS)}.")
        if not self.ask or not 2 <= self.fields <= len(FIELDS) or not 1 <= self.words <= 4:
            raise ConfigError(
                f"ask={list(self.ask)} must name a question, fields={self.fields} be 2 to {len(FIELDS)}, "
                f"words={self.words} 1 to 4"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        ask = rng.choice(self.ask)
        left = rng.randint(8, 20)
        if ask == "ocr":
            text = " ".join(rng.sample(WORDS, self.words))
            image = GeneratedImage(draw_document, (((8, rng.randint(10, 130), text),),))
            return Row(
                self.id(index),
                "Which words are written here?",
                text,
                images=(image,),
                task=ask,
                target=tagged_answer(text),
            )
        form = {name: rng.choice(FIELDS[name]) for name in rng.sample(sorted(FIELDS), self.fields)}
        lines = tuple(
            (left, 10 + LINE * i, f"{name}: {value}") for i, (name, value) in enumerate(form.items())
        )
        image = GeneratedImage(draw_document, (lines,))
        if ask == "extraction":
            question = f"Give the fields {', '.join(form)} of this form as one JSON object."
            return Row(
                self.id(index),
                question,
                form,
                images=(image,),
                task=ask,
                target=tagged_answer(json.dumps(form)),
            )
        wanted = rng.randrange(self.fields)
        name, value = list(form.items())[wanted]
        gold: dict[str, Any] = {"answer": value, "bbox": text_box(left, lines[wanted][1], f"{name}: ", value)}
        question = (
            f'What is the {name}? Answer with one JSON object: {{"final_answer": "...", "bbox_2d": [x1, '
            f"y1, x2, y2]}}, its box."
        )
        target = json.dumps({"final_answer": gold["answer"], "bbox_2d": gold["bbox"]})
        return Row(
            self.id(index),
            question,
            gold,
            images=(image,),
            task=ask,
            target=tagged_answer(target),
            meta={**IN_PIXELS},
        )
