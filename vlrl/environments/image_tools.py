"""Tools that work on the pictures shown so far: crop, rotate, draw, measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.environments.zoom import Zoom, ZoomEpisode
from vlrl.plugins.episodes import MAX_PIXELS, PICTURE_REPLIES, Observation
from vlrl.plugins.registry import register
from vlrl.plugins.tool_calls import numbers
from vlrl.types import Edited

Shape = Literal["box", "line", "point"]
Colour = Literal["red", "green", "blue", "yellow", "black", "white"]
TOOLS = ("crop", "rotate", "draw", "measure")


@dataclass(frozen=True)
class Rotated(Edited):
    """`base` turned by `degrees` counter-clockwise; the canvas grows so that nothing is cut, and what is new
    is black."""

    degrees: float = 0.0

    @property
    def key(self) -> str:
        return f"rotated/{self.degrees:g}/{self.base.key}"

    def load(self) -> Any:
        image: Any = self.base.load()
        return image.convert("RGB").rotate(self.degrees, expand=True)


@dataclass(frozen=True)
class Drawn(Edited):
    """`base` with a shape drawn on it; `points` are x, y, x, y ... in its pixels."""

    shape: Shape = "box"
    points: tuple[float, ...] = ()
    colour: Colour = "red"

    @property
    def key(self) -> str:
        return f"drawn/{self.shape}/{self.colour}/{self.points}/{self.base.key}"

    def load(self) -> Any:
        from PIL import ImageDraw

        loaded: Any = self.base.load()
        image = loaded.convert("RGB")
        pen, wide = ImageDraw.Draw(image), max(2, round(min(image.size) / 100))
        x1, y1, x2, y2 = (*self.points, *self.points)[:4]
        if self.shape == "point":
            pen.ellipse((x1 - 2 * wide, y1 - 2 * wide, x1 + 2 * wide, y1 + 2 * wide), fill=self.colour)
        elif self.shape == "line":
            pen.line((x1, y1, x2, y2), fill=self.colour, width=wide)
        else:
            pen.rectangle(
                (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)), outline=self.colour, width=wide
            )
        return image


@register("image_tools")
@dataclass(frozen=True, kw_only=True)
class ImageTools(ToolEnvironment):
    """Tools for pictures: crop(box), rotate(degrees), draw(points, shape, color) and measure(start, end),
    each of picture number `image`.

    vlrl original, after agents that work on pictures (OpenThinkIMG, arXiv:2505.08617). crop is `zoom`'s.
    rotate turns counter-clockwise and grows the canvas. draw marks a box, a line or a point. measure answers
    with the length in pixels of the original picture and the angle in degrees, counter-clockwise from the
    right. Results of crop, rotate and draw are pictures with the next numbers. Edge: a picture that does not
    exist, points outside of it, and turns that make a picture larger than 4096 x 4096 pixels are told to the
    policy; a turn without a call ends the episode. Units: coordinates are the policy's own (`Action.spaces`).

    Attributes:
        allow: The tools that the policy may call.
        min_side: Smallest side of a box, in original pixels.
        side: Shorter side of a crop, in original pixels.
    """

    allow: tuple[str, ...] = TOOLS
    min_side: int = 8
    side: int = 224
    provides = (PICTURE_REPLIES,)

    def __post_init__(self) -> None:
        unknown = [name for name in self.allow if name not in TOOLS]
        if unknown or not self.allow:
            raise ValueError(f"allow={list(self.allow)}: name some of {', '.join(TOOLS)}")

    def toolbox(self) -> Sequence[Tool]:
        return list(ImageToolsEpisode(self).tools.values())

    def episode(self) -> ToolEpisode:
        return ImageToolsEpisode(self)


class ImageToolsEpisode(ToolEpisode):
    """Tools over the pictures that were shown so far."""

    def __init__(self, settings: ImageTools) -> None:
        self.cropping = ZoomEpisode(Zoom(min_side=settings.min_side, side=settings.side))
        known: dict[str, Callable[..., Any]] = {
            "crop": self.crop,
            "rotate": self.rotate,
            "draw": self.draw,
            "measure": self.measure,
        }
        super().__init__([Tool.of(known[name]) for name in settings.allow])

    @property
    def stateless(self) -> bool:
        return True  # the pictures shown so far come with the action

    def crop(self, box: list, image: int = 0) -> Observation:
        """Shows an enlarged part of a picture. box: [x1, y1, x2, y2]; image: number of the picture, from
        0."""
        self.cropping.action = self.action
        return self.cropping.zoom(box, image)

    def rotate(self, degrees: float, image: int = 0) -> Observation:
        """Turns a picture counter-clockwise and shows it. degrees: the angle; image: number of the picture,
        from 0."""
        width, height = self.space(image).original
        if not math.isfinite(degrees):
            raise ValueError("degrees must be a number")
        turn = math.radians(degrees % 360.0)
        grown = (abs(math.cos(turn)) * width + abs(math.sin(turn)) * height + 2) * (
            abs(math.sin(turn)) * width + abs(math.cos(turn)) * height + 2
        )
        if grown > MAX_PIXELS:
            raise ValueError("the turned picture would be too large")
        return self.picture(
            Rotated(self.action.images[image], degrees % 360.0), "This is the picture, turned."
        )

    def draw(self, points: list, shape: Shape = "box", color: Colour = "red", image: int = 0) -> Observation:
        """Draws on a copy of a picture and shows it. points: [x1, y1, x2, y2] of a box or a line, [x, y] of a
        point; image: number, from 0."""
        place = self.places(points, 2 if shape == "point" else 4, image)
        return self.picture(
            Drawn(self.action.images[image], shape, place, color),
            f"This is the picture with a {color} {shape}.",
        )

    def measure(self, start: list, end: list, image: int = 0) -> str:
        """Measures from one point to another: length and angle. start, end: [x, y]; image: number of the
        picture, from 0."""
        (x1, y1), (x2, y2) = self.places(start, 2, image), self.places(end, 2, image)
        length, angle = math.hypot(x2 - x1, y2 - y1), math.degrees(math.atan2(y1 - y2, x2 - x1)) % 360.0
        return f"length {length:.1f} pixels, angle {angle:.1f} degrees"

    def space(self, image: int) -> Any:
        """What coordinates mean in a picture. Raises ValueError where there is no such picture."""
        if not 0 <= image < len(self.action.images):
            raise ValueError(f"image must be between 0 and {len(self.action.images) - 1}")
        return self.action.spaces[image]

    def places(self, points: list, count: int, image: int) -> tuple[float, ...]:
        """Points in original pixels. Raises ValueError where they are no numbers, or outside the picture."""
        space, found = self.space(image), numbers(points, count)
        if found is None:
            raise ValueError(f"give {count} numbers, like {[10, 20, 30, 40][:count]}")
        place = tuple(space.to_original(found))
        if not all(0 <= value <= space.original[i % 2] for i, value in enumerate(place)):
            raise ValueError("the points must be inside the picture")
        return place

    def picture(self, made: Edited, text: str) -> Observation:
        """A new picture, shown under the next number."""
        return Observation(f"{text} It is picture {len(self.action.images)}.", (made,), role="tool")
