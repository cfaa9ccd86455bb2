"""Drawn scenes of coloured shapes: counting, and spatial relations with mirrored pairs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageOps

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.lab.digits import scatter
from vlrl_data.media.images import GeneratedImage

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 40),
    "purple": (150, 60, 180),
}
SHAPES = ("circle", "square", "triangle")
Thing = tuple[str, str, int, int, int]  # an object: colour, shape, left, top, side
MIRROR = {"left of": "right of", "right of": "left of", "above": "above", "below": "below"}


def draw_shape(
    pen: ImageDraw.ImageDraw, shape: str, box: tuple[int, int, int, int], colour: tuple[int, int, int]
) -> None:
    """One filled shape in a box (left, top, right, bottom)."""
    left, top, right, bottom = box
    table = {
        "circle": lambda: pen.ellipse(box, fill=colour),
        "square": lambda: pen.rectangle(box, fill=colour),
        "triangle": lambda: pen.polygon(
            ((left, bottom), (right, bottom), ((left + right) // 2, top)), fill=colour
        ),
    }
    table[shape]()


def draw_scene(size: int, things: tuple[Thing, ...], mirrored: bool = False) -> Image.Image:
    """Shapes on light grey, mirrored left to right if `mirrored`."""
    image = Image.new("RGB", (size, size), (230, 230, 230))
    pen = ImageDraw.Draw(image)
    for colour, shape, left, top, side in things:
        draw_shape(pen, shape, (left, top, left + side - 1, top + side - 1), COLOURS[colour])
    return ImageOps.mirror(image) if mirrored else image


@dataclass(frozen=True, kw_only=True)
class Shapes(GeneratedSource):
    """Shapes of `least` to `most` pixels on `size` x `size` pixels."""

    size: int = 168
    least: int = 20
    most: int = 36

    def things(self, rng: random.Random, kinds: list[tuple[str, str]]) -> tuple[Thing, ...]:
        """One object per (colour, shape), without overlap."""
        squares = scatter(rng, len(kinds), self.size, (self.least, self.most), 1)
        return tuple(
            (colour, shape, left, top, side) for (colour, shape), (left, top, side) in zip(kinds, squares)
        )


@register("gen_counting")
@dataclass(frozen=True, kw_only=True)
class GenCounting(Shapes):
    """The number of objects of a colour and shape in a scene; the answer is an int from `low` to `high`.

    Paper: the task of CLEVR counting (Johnson et al. 2017, arXiv:1612.06890), in two dimensions. Reward:
    `counting`. Harder with more `others`. `meta.caption` lists the objects. `thought`: demonstrations name
    them before the answer.
    """

    low: int = 1
    high: int = 6
    others: int = 4
    thought: bool = False

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
        wanted = rng.choice(kinds)
        count = rng.randint(self.low, self.high)
        rest = rng.choices([kind for kind in kinds if kind != wanted], k=rng.randint(0, self.others))
        image = GeneratedImage(draw_scene, (self.size, self.things(rng, [wanted] * count + rest)))
        question = f"How many {wanted[0]} {wanted[1]}s are there?"
        shown = Counter([wanted] * count + rest)
        meta = {
            "caption": ", ".join(
                f"{n} {colour} {shape}{'s' * (n > 1)}" for (colour, shape), n in sorted(shown.items())
            )
        }
        target = f"<think>I see {meta['caption']}.</think>" * self.thought + tagged_answer(str(count))
        return Row(
            self.id(index), question, count, images=(image,), task="counting", target=target, meta=meta
        )


@register("gen_spatial")
@dataclass(frozen=True, kw_only=True)
class GenSpatial(Shapes):
    """The position of one object relative to another: left of, right of, above or below; each scene also
    mirrored, with left and right swapped.

    Paper: the mirrored pairs of SVQA-R1 (arXiv:2506.01371). Rows 2i and 2i + 1 show scene i and its mirror
    image (`meta.pair`, `meta.mirrored`); a reward may require both to be correct. Reward: `exact`. The two
    objects differ by at least `gap` pixels on the axis asked about.
    """

    axis: tuple[str, ...] = ("horizontal", "vertical")
    others: int = 2
    gap: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.axis:
            if name not in ("horizontal", "vertical"):
                raise ConfigError(f"axis: {name!r} is unknown. Known: horizontal, vertical.")
        if self.gap > self.size - 2 * self.most:
            raise ConfigError(
                f"gap: {self.gap} pixels do not fit on {self.size} with objects of {self.most}; lower "
                "`gap` or `most`, or raise `size`"
            )

    def row(self, index: int) -> Row:
        scene, mirrored = divmod(index, 2)
        rng = self.rng(scene)
        kinds = rng.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], 2 + self.others)
        across = rng.choice(self.axis) == "horizontal"
        while True:
            things = self.things(rng, kinds)
            a, b = ((left if across else top) + side / 2 for _, _, left, top, side in things[:2])
            if abs(a - b) >= self.gap:
                break
        answer = ("left of" if a < b else "right of") if across else ("above" if a < b else "below")
        answer = MIRROR[answer] if mirrored else answer
        sides = "left of or right of" if across else "above or below"
        first, second = (f"the {thing[0]} {thing[1]}" for thing in things[:2])
        image = GeneratedImage(draw_scene, (self.size, things, bool(mirrored)))
        meta = {"pair": f"{self.name}-{self.split}-{self.seed}-{scene}", "mirrored": bool(mirrored)}
        question = f"Is {first} {sides} {second}?"
        return Row(
            self.id(index),
            question,
            answer,
            images=(image,),
            task="spatial",
            target=tagged_answer(answer),
            meta=meta,
        )
