"""Questions of many kinds over drawn scenes, with choices, yes or no, texts, numbers and judgements as
answers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.boxes import KINDS, name_of, reading_order
from vlrl_data.generators.drawn_text import write, write_centred
from vlrl_data.generators.scenes import COLOURS, Shapes, Thing, draw_scene
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

LETTERS = "ABCD"
Asked = tuple[
    str, Any, str, dict[str, Any]
]  # question, gold answer, demonstrated answer, further fields of the row


def choice(rng: random.Random, things: list[Thing]) -> Asked:
    """The colour of the only object of its shape, with four options."""
    shape = next(
        (thing[1] for thing in things if sum(other[1] == thing[1] for other in things) == 1), things[0][1]
    )
    colour = next(thing[0] for thing in things if thing[1] == shape)
    options = rng.sample([c for c in COLOURS if c != colour], 3) + [colour]
    rng.shuffle(options)
    letter = LETTERS[options.index(colour)]
    return f"Which colour has a {shape} in the picture?", letter, letter, {"choices": tuple(options)}


def yes_no(rng: random.Random, things: list[Thing]) -> Asked:
    """Whether an object is there; half of the answers are yes."""
    there = rng.random() < 0.5
    shown = {thing[:2] for thing in things}
    colour, shape = (
        rng.choice(sorted(shown)) if there else rng.choice([kind for kind in KINDS if kind not in shown])
    )
    answer = "yes" if there else "no"
    return f"Is there a {colour} {shape}?", answer, answer, {}


def open_answer(rng: random.Random, things: list[Thing]) -> Asked:
    """The object farthest to a side, in words."""
    side, key = rng.choice(
        [
            ("left", lambda t: t[2]),
            ("right", lambda t: -t[2] - t[4]),
            ("top", lambda t: t[3]),
            ("bottom", lambda t: -t[3] - t[4]),
        ]
    )
    text = name_of(min(things, key=key))
    return f"What is closest to the {side} edge?", text, text, {}


def caption(rng: random.Random, things: list[Thing]) -> Asked:
    """A sentence that lists the objects from top to bottom."""
    text = f"A picture of {', '.join(f'a {name_of(thing)}' for thing in reading_order(things))}."
    return "Describe the picture in one sentence, from top to bottom.", text, text, {}


def description(rng: random.Random, things: list[Thing]) -> Asked:
    """A description that mentions every object; gold: the keywords."""
    names = [name_of(thing) for thing in reading_order(things)]
    said = " ".join(f"I can see that there is a {name} here." for name in names)
    vocabulary = [" ".join(kind) for kind in KINDS]
    return "Describe everything in the picture.", names, said, {"meta": {"vocabulary": vocabulary}}


def measure(rng: random.Random, things: list[Thing]) -> Asked:
    """The distance of the centres of two objects, in pixels."""
    (ax, ay), (bx, by) = ((left + side / 2, top + side / 2) for _, _, left, top, side in things[:2])
    answer = round(math.dist((ax, ay), (bx, by)))
    question = (
        f"How many pixels are the centres of the {name_of(things[0])} and the {name_of(things[1])} apart? "
        "The picture is 168 pixels wide."
    )
    return question, answer, str(answer), {}


def preference(rng: random.Random, things: list[Thing]) -> Asked:
    """Which of two answers to a question about the number of objects of a colour is better: 1 or 2."""
    colour = rng.choice(things)[0]
    count = sum(thing[0] == colour for thing in things)
    wrong = rng.choice([n for n in range(5) if n != count])
    better = rng.choice((1, 2))
    one, two = (count, wrong) if better == 1 else (wrong, count)
    question = (
        f"Question: How many {colour} objects are there? Answer 1: there are {one}. Answer 2: there are "
        f"{two}. Which answer is better, 1 or 2?"
    )
    return question, str(better), str(better), {}


QUESTIONS: dict[str, Callable[[random.Random, list[Thing]], Asked]] = {
    "choice": choice, "yes_no": yes_no, "open": open_answer, "caption": caption, "description": description,
    "measure": measure,
    "preference": preference,
}  # fmt: skip


@register("gen_question")
@dataclass(frozen=True, kw_only=True)
class GenQuestion(Shapes):
    """A question about a scene of `objects` different objects. `ask` names the kinds; each is a task of its
    own. Demonstrations have the answer in tags, with `boxed` in a box:

        choice        the colour of a shape, four options; gold: a letter
        yes_no        whether an object is there
        open          the object closest to an edge, in words
        caption       one sentence; gold: the sentence
        description   a description; gold: its keywords; `meta.vocabulary` has all objects that scenes show
        measure       the distance of two objects in pixels
        preference    which of two answers about the scene is better, "1" or "2"

    Paper: vlrl original, for the rewards `mcq`, `yes_no`, `text_metric`, `keywords`, `closeness` and
    `classification` of recipes that mix kinds of questions (Mixed-R1, arXiv:2505.24164; MedCCO,
    arXiv:2505.19213; R1-Reward, arXiv:2505.02835). Harder with more `objects`.
    """

    ask: tuple[str, ...] = ("choice",)
    objects: int = 3
    boxed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.ask:
            if name not in QUESTIONS:
                raise ConfigError(f"ask: {name!r} is unknown. Known: {', '.join(QUESTIONS)}.")
        if not self.ask or not 2 <= self.objects <= 6:
            raise ConfigError(
                f"ask={list(self.ask)} must name a question, and objects={self.objects} be 2 to 6"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        ask = rng.choice(self.ask)
        things = list(self.things(rng, rng.sample(KINDS, self.objects)))
        if ask == "choice":  # one shape occurs once, so that its colour is unique
            shapes = rng.sample(sorted({shape for _, shape in KINDS}), 2)
            kinds = [
                (rng.choice(sorted(COLOURS)), shapes[0]),
                *((colour, shapes[1]) for colour in rng.sample(sorted(COLOURS), self.objects - 1)),
            ]
            things = list(self.things(rng, kinds))
        question, answer, said, fields = QUESTIONS[ask](rng, things)
        image = GeneratedImage(draw_scene, (self.size, tuple(things)))
        return Row(
            self.id(index),
            question,
            answer,
            images=(image,),
            task=ask,
            target=f"\\boxed{{{said}}}" if self.boxed else tagged_answer(said),
            **fields,
        )


def draw_figure(kind: str, first: int, second: int, colour: str) -> Image.Image:
    """A rectangle or a right triangle with the lengths of its two sides written beside them."""
    image = Image.new("RGB", (168, 168), (250, 250, 250))
    pen = ImageDraw.Draw(image)
    x1, y1 = 40 + 8 * first, 30 + 8 * second
    corners = [(40, 30), (40, y1), (x1, y1)] + ([(x1, 30)] if kind == "rectangle" else [])
    pen.polygon(corners, outline=COLOURS[colour], width=3)
    write_centred(pen, (40, y1 + 2, x1, y1 + 22), str(first), 16)
    write(pen, (14, (30 + y1) / 2 - 8), str(second), 16)
    return image


PRINCIPLES: dict[str, tuple[str, str, Callable[[int, int], int]]] = {  # principle -> figure, question, answer
    "rectangle area": ("rectangle", "What is the area of the rectangle?", lambda a, b: a * b),
    "rectangle perimeter": ("rectangle", "What is the perimeter of the rectangle?", lambda a, b: 2 * (a + b)),
    "triangle area": ("triangle", "What is twice the area of the triangle?", lambda a, b: a * b),
    "longer side": (
        "rectangle",
        "How much longer is the longer side of the rectangle than the shorter one?",
        lambda a, b: abs(a - b),
    ),
}


@register("gen_geometry")
@dataclass(frozen=True, kw_only=True)
class GenGeometry(GeneratedSource):
    """A geometry problem on a drawn figure; task `math`, the answer is an int.

    Rows come in sets of `variants` in a row that share a knowledge principle (`meta.principle`: the set's
    number and its principle) and differ in numbers and colours; `meta.level` is the number of the variant in
    its set, 0 the one with the smallest numbers.
    With `facts` the row also has what the figure shows, `meta.visual_facts`, and its demonstration says so.
    Paper: the variants of one knowledge principle of We-Math 2.0 (arXiv:2508.10433), on drawn figures; the
    visual facts of Perception-R1 (arXiv:2506.07218). Rewards: `math`, `visual_facts`. Harder with a larger
    `most`.
    """

    facts: bool = False
    variants: int = 4
    least: int = 2
    most: int = 12
    principles: tuple[str, ...] = tuple(PRINCIPLES)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.principles:
            if name not in PRINCIPLES:
                raise ConfigError(f"principles: {name!r} is unknown. Known: {', '.join(PRINCIPLES)}.")
        if not self.principles or self.variants < 1 or not 1 <= self.least < self.most <= 14:
            raise ConfigError(
                f"variants={self.variants} must be at least 1, principles not empty, 1 <= "
                f"least={self.least} < most={self.most} <= 14"
            )

    def row(self, index: int) -> Row:
        group, level = divmod(index, self.variants)
        shared, rng = self.rng(group), self.rng(-1 - index)
        name = shared.choice(self.principles)
        kind, question, solve = PRINCIPLES[name]
        top = self.least + 1 + round((self.most - self.least - 1) * (level + 1) / self.variants)
        first, second = (rng.randint(self.least, top) for _ in range(2))
        image = GeneratedImage(draw_figure, (kind, first, second, rng.choice(sorted(COLOURS))))
        answer = solve(first, second)
        principle = f"{self.name}-{self.split}-{self.seed}-{group}: {name}"
        meta: dict[str, Any] = {"principle": principle, "level": level}
        told = ""
        if self.facts:
            facts = [f"The figure is a {kind}", f"Its lower side is {first}", f"Its left side is {second}"]
            meta["visual_facts"], told = facts, f"<think>{'. '.join(facts)}.</think>"
        return Row(
            self.id(index),
            question,
            answer,
            images=(image,),
            task="math",
            target=told + tagged_answer(str(answer)),
            meta=meta,
        )
