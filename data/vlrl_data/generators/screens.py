"""Drawn screens of a graphical user interface: one action of an agent, or the box of an element."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.drawn_text import write, write_centred
from vlrl_data.lab.base import IN_PIXELS, GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

LABELS = ("Save", "Send", "Open", "Share", "Print", "Help", "Edit", "Next", "Login", "Search", "Play", "Stop")
WORDS = ("blue lamp", "green tea", "old map", "red shoes", "ice cream", "two keys", "tall tree", "warm soup")
COLOURS = ((70, 120, 220), (60, 160, 90), (220, 110, 60), (150, 80, 190))
Element = tuple[str, tuple[int, int, int, int], int]  # label, box, colour
ACTIONS = ("click", "type", "scroll", "back")
STYLES = ("answer", "blink")


def draw_screen(
    width: int, height: int, title: str, field: tuple[int, int, int, int], elements: tuple[Element, ...]
) -> Image.Image:
    """A screen: a title bar with a back arrow, a text field and labelled buttons."""
    image = Image.new("RGB", (width, height), (245, 245, 245))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, width, 27), fill=(210, 215, 225))
    pen.polygon(((6, 14), (16, 6), (16, 22)), fill=(60, 60, 60))
    write(pen, (26, 6), title, 14)
    pen.rectangle(field, fill=(255, 255, 255), outline=(120, 120, 120))
    for label, box, colour in elements:
        pen.rounded_rectangle(box, 5, fill=COLOURS[colour])
        write_centred(pen, box, label, 14, (255, 255, 255))
    return image


@register("gen_screen")
@dataclass(frozen=True, kw_only=True)
class GenScreen(GeneratedSource):
    """What to do on a screen: click a button, type a text, scroll, or go back; task `gui`.

    Gold: {"action": "click", "box": [x1, y1, x2, y2], "point": [x, y]}, {"action": "type", "text": ...},
    {"action": "scroll", "direction": ...} or {"action": "back"}. `style` "answer" demonstrates one action in
    answer tags; "blink" demonstrates BTL-UI's three sections: candidate boxes, a thought, the action. Clicks
    are three times as frequent as any other action.
    Paper: the action spaces of UI-R1 (arXiv:2503.21620), GUI-R1 (arXiv:2504.10458) and BTL-UI
    (arXiv:2509.15566), on drawn screens. Rewards: `gui_action`, `blink`. Units: pixels of the screen. Harder
    with more `buttons` and a smaller `least`.
    """

    width: int = 168
    height: int = 224
    buttons: int = 4
    least: int = 24
    actions: tuple[str, ...] = ACTIONS
    style: str = "answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.actions:
            if name not in ACTIONS:
                raise ConfigError(f"actions: {name!r} is unknown. Known: {', '.join(ACTIONS)}.")
        if not self.actions or self.style not in STYLES:
            raise ConfigError(
                f"actions={list(self.actions)} must name an action, and style={self.style!r} be one of "
                f"{', '.join(STYLES)}"
            )
        rows = (self.height - 72) // (self.least + 22)
        if not 1 <= self.buttons <= min(2 * rows, len(LABELS)):
            fitting = min(2 * rows, len(LABELS))
            raise ConfigError(
                f"buttons={self.buttons}: 1 to {fitting} fit on {self.width} x {self.height} with "
                f"least={self.least}"
            )

    def screen(self, rng: random.Random) -> tuple[GeneratedImage, tuple[Element, ...]]:
        """A screen, and its buttons."""
        labels = rng.sample(LABELS, self.buttons)
        column, line = self.width // 2, self.least + 22
        cells = rng.sample(
            [(i % 2 * column, 72 + i // 2 * line) for i in range(2 * ((self.height - 72) // line))],
            self.buttons,
        )
        elements = []
        for label, (x, y) in zip(labels, cells, strict=True):
            wide, tall = rng.randint(column - 36, column - 14), rng.randint(self.least, self.least + 14)
            left, top = x + rng.randint(4, column - wide - 4), y + rng.randint(0, line - tall - 4)
            elements.append((label, (left, top, left + wide, top + tall), rng.randrange(len(COLOURS))))
        made = tuple(elements)
        return GeneratedImage(
            draw_screen, (self.width, self.height, rng.choice(WORDS), (12, 36, self.width - 12, 60), made)
        ), made

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        image, elements = self.screen(rng)
        label, box, _ = elements[0]
        table: dict[str, tuple[str, dict[str, Any]]] = {
            "click": (
                f"Press the {label} button.",
                {
                    "action": "click",
                    "box": list(box),
                    "point": [(box[0] + box[2]) // 2, (box[1] + box[3]) // 2],
                },
            ),
            "type": (f"Enter the words: {(words := rng.choice(WORDS))}", {"action": "type", "text": words}),
            "scroll": (
                f"Move the page {(way := rng.choice(('up', 'down')))}.",
                {"action": "scroll", "direction": way},
            ),
            "back": ("Return to the screen before.", {"action": "back"}),
        }
        task, gold = table[
            rng.choices(self.actions, [3 if action == "click" else 1 for action in self.actions])[0]
        ]
        question = (
            f'{task} Answer with one action: {{"action": "click", "point": [x, y]}}, {{"action": "type", '
            f'"text": "..."}}, {{"action": "scroll", '
        )
        question += '"direction": "up" or "down"} or {"action": "back"}.'
        said = {key: value for key, value in gold.items() if key != "box"}
        target = tagged_answer(json.dumps(said)) if self.style == "answer" else three_sections(gold, said)
        meta = {"size": [self.width, self.height], **IN_PIXELS}
        return Row(self.id(index), question, gold, images=(image,), task="gui", target=target, meta=meta)


def three_sections(gold: dict[str, Any], said: dict[str, Any]) -> str:
    """BTL-UI's form: candidate boxes ("None" without), a thought, the action."""
    blink = json.dumps([{"bbox_2d": gold["box"]}]) if "box" in gold else "None"
    return f"<blink>{blink}</blink><think>I need {gold['action']}.</think><link>{json.dumps([said])}</link>"


@register("gen_screen_grounding")
@dataclass(frozen=True, kw_only=True)
class GenScreenGrounding(GenScreen):
    """The box of a named button; task `grounding`, gold [x1, y1, x2, y2], `meta.size` the size of the screen,
    `meta.area` the button's share of it.

    Paper: the task of GUI-G1 (arXiv:2505.15810), on drawn screens. Reward: `gui_grounding`. `rate` is its
    difficulty coefficient per row, larger for smaller targets: mean area of a button / area of this one.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        image, elements = self.screen(rng)
        label, box, _ = elements[0]
        area = (box[2] - box[0]) * (box[3] - box[1])
        typical = (self.width / 2 - 25) * (self.least + 7)
        meta = {
            "size": [self.width, self.height],
            "area": area / (self.width * self.height),
            "rate": typical / area,
            **IN_PIXELS,
        }
        question = f"Where is the {label} button? Answer with its box [x1, y1, x2, y2]."
        return Row(
            self.id(index),
            question,
            list(box),
            images=(image,),
            task="grounding",
            target=tagged_answer(json.dumps(list(box))),
            meta=meta,
        )
