"""Drawn bar charts: a value that is read from the chart, or the script that plots it."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.drawn_text import write, write_centred
from vlrl_data.generators.scenes import COLOURS
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

NAMES = ("Ann", "Bob", "Cat", "Dan", "Eve", "Fay", "Gus", "Hal")
TITLES = ("Books read", "Cups of tea", "Hours slept", "Miles run", "Games won")
ASKS = ("chart_value", "chart")
LEFT, TOP, FLOOR, RIGHT = 34, 28, 146, 218  # of the plotted area, in pixels
SIZE = (224, 168)


def draw_chart(title: str, bars: tuple[tuple[str, int], ...], colour: str, most: int) -> Image.Image:
    """A bar chart with a grid line at every tenth unit; `most` is the largest value of the axis."""
    image = Image.new("RGB", SIZE, (255, 255, 255))
    pen = ImageDraw.Draw(image)
    write_centred(pen, (0, 4, SIZE[0], 24), title, 14)
    for value in range(0, most + 1, 10):
        y = FLOOR - (FLOOR - TOP) * value / most
        pen.line((LEFT, y, RIGHT, y), fill=(205, 205, 205))
        write(pen, (6, y - 8), str(value), 12)
    wide = (RIGHT - LEFT) / len(bars)
    for i, (name, value) in enumerate(bars):
        x = LEFT + wide * i
        pen.rectangle(
            (x + 4, FLOOR - (FLOOR - TOP) * value / most, x + wide - 4, FLOOR), fill=COLOURS[colour]
        )
        write_centred(pen, (int(x), FLOOR + 2, int(x + wide), FLOOR + 20), name, 12)
    return image


def script(title: str, bars: tuple[tuple[str, int], ...], colour: str) -> str:
    """The matplotlib script of a bar chart."""
    names, values = [name for name, _ in bars], [value for _, value in bars]
    return (
        f"import matplotlib.pyplot as plt\nplt.bar({names}, {values}, "
        f'color="{colour}")\nplt.title("{title}")\nplt.show()'
    )


@register("gen_chart")
@dataclass(frozen=True, kw_only=True)
class GenChart(GeneratedSource):
    """A bar chart. `ask` names the questions; each is a task of its own:

        chart_value   the height of a named bar, a number
        chart         the matplotlib script that plots the chart, in a fenced block

    Paper: the tasks of Mixed-R1's chart reward (arXiv:2505.24164) and of MSRL (arXiv:2508.13587), on drawn
    charts. Rewards: `numeric` with a relative tolerance, `chart_code`. Harder with more `bars` and a larger
    `most`.
    """

    ask: tuple[str, ...] = ("chart_value",)
    bars: int = 4
    most: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.ask:
            if name not in ASKS:
                raise ConfigError(f"ask: {name!r} is unknown. Known: {', '.join(ASKS)}.")
        if not self.ask or not 1 <= self.bars <= len(NAMES) or self.most < 10:
            raise ConfigError(
                f"ask={list(self.ask)} must name a question, bars={self.bars} be 1 to {len(NAMES)}, and "
                f"most={self.most} at least 10"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        ask = rng.choice(self.ask)
        bars = tuple((name, rng.randint(2, self.most)) for name in rng.sample(NAMES, self.bars))
        title, colour = rng.choice(TITLES), rng.choice(sorted(COLOURS))
        image = GeneratedImage(draw_chart, (title, bars, colour, self.most))
        if ask == "chart":
            code = script(title, bars, colour)
            question = "Write the matplotlib script that plots this chart."
            return Row(
                self.id(index), question, code, images=(image,), task=ask, target=f"```python\n{code}\n```"
            )
        name, value = rng.choice(bars)
        return Row(
            self.id(index),
            f"How high is the bar of {name}?",
            value,
            images=(image,),
            task=ask,
            target=tagged_answer(str(value)),
        )
