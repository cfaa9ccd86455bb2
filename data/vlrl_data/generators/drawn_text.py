"""Text on drawn pictures, with the font that ships with Pillow."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from PIL import ImageDraw, ImageFont

INK = (20, 20, 20)


@lru_cache(maxsize=16)
def font(size: int) -> Any:
    """Pillow's own font at a size in pixels: the same on every machine."""
    return ImageFont.load_default(size)


def write(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int,
    colour: tuple[int, int, int] = INK,
) -> None:
    """A line of text whose upper left corner is at `place`."""
    pen.text(place, text, fill=colour, font=font(size))


def write_centred(
    pen: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    text: str,
    size: int,
    colour: tuple[int, int, int] = INK,
) -> None:
    """A line of text in the middle of a box."""
    pen.text(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2), text, fill=colour, font=font(size), anchor="mm")
