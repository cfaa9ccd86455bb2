"""Video tasks: a digit moves across a photograph, or digits appear one after the other. The mp4 files are
really encoded and decoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab import shipped_images
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.video import GeneratedVideo, encode

DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
Box = tuple[int, int, int, int]


@lru_cache(maxsize=512)
def clip_moving(
    photo: str,
    box: Box,
    size: int,
    contrast: float,
    picture: int,
    digit: int,
    path: tuple[int, int, int, int],
    order: tuple[int, ...],
    fps: float,
) -> bytes:
    """An mp4 in which a digit goes from (x0, y0) to (x1, y1); `order` is the sequence of moments that are
    shown."""
    ground = shipped_images.crop(photo, box, size, size).point(lambda value: int(value * contrast))
    ink = shipped_images.digit(picture, digit)
    x0, y0, x1, y1 = path
    shown = []
    for step in np.linspace(0, 1, len(order))[list(order)]:
        frame = ground.copy()
        frame.paste(ink.convert("RGB"), (round(x0 + (x1 - x0) * step), round(y0 + (y1 - y0) * step)))
        shown.append(np.asarray(frame))
    return encode(shown, fps)


@lru_cache(maxsize=512)
def clip_sequence(
    photo: str,
    box: Box,
    size: int,
    contrast: float,
    pictures: tuple[int, ...],
    digit: int,
    order: tuple[int, ...],
    fps: float,
) -> bytes:
    """An mp4 in which digits appear one after the other in the middle, each for an equal part of the frames,
    which are shown in `order`."""
    ground = shipped_images.crop(photo, box, size, size).point(lambda value: int(value * contrast))
    place = ((size - digit) // 2, (size - digit) // 2)
    shown = []
    for step in order:
        frame: Image.Image = ground.copy()
        frame.paste(
            shipped_images.digit(pictures[step * len(pictures) // len(order)], digit).convert("RGB"), place
        )
        shown.append(np.asarray(frame))
    return encode(shown, fps)


@register("lab_video")
@dataclass(frozen=True, kw_only=True)
class LabVideo(GeneratedSource):
    """`ask` "direction": left, right, up or down (of `directions`); `ask` "order": which of `shown` different
    digits comes first.

    `size` x `size` pixels, `frames` frames at `fps` per second. `shuffled`: the same videos with their frames
    in random order, as task "video_shuffled", which measures how much can be answered without the order.
    Harder: higher `contrast` of the photograph, smaller `digit`, more `shown`.
    """

    ask: str = "direction"
    size: int = 56
    digit: int = 28
    frames: int = 8
    fps: float = 4.0
    contrast: float = 0.3
    directions: tuple[str, ...] = ("left", "right", "up", "down")
    shown: int = 2
    photos: tuple[str, ...] = ()
    shuffled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ask not in ("direction", "order"):
            raise ConfigError(f"ask: {self.ask!r} is unknown. Known: direction, order.")
        for name in self.directions:
            if name not in DIRECTIONS:
                raise ConfigError(f"directions: {name!r} is unknown. Known: {', '.join(DIRECTIONS)}.")
        if self.size % 2 or self.frames % 2 or self.digit >= self.size:
            raise ConfigError(
                f"size={self.size} and frames={self.frames} must be even, and digit={self.digit} smaller "
                "than size"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        name, box = shipped_images.random_crop(rng, self.split, self.photos)
        moments = range(self.frames)
        order = tuple(
            Random(f"{self.id(index)}|order").sample(moments, self.frames) if self.shuffled else moments
        )
        if self.ask == "order":
            pictures = tuple(
                rng.choice(shipped_images.ids_of_label(self.split, label))
                for label in rng.sample(range(10), self.shown)
            )
            video = GeneratedVideo(
                clip_sequence, (name, box, self.size, self.contrast, pictures, self.digit, order, self.fps)
            )
            question, answer = "Which digit first?", str(shipped_images.label_of(pictures[0]))
        else:
            answer = rng.choice(self.directions)
            room = self.size - self.digit
            across, x, y = rng.randint(0, room), *DIRECTIONS[answer]
            start = (room if x < 0 else 0 if x else across, room if y < 0 else 0 if y else across)
            path = (*start, start[0] + x * room, start[1] + y * room)
            picture = rng.choice(shipped_images.digit_ids(self.split))
            video = GeneratedVideo(
                clip_moving, (name, box, self.size, self.contrast, picture, self.digit, path, order, self.fps)
            )
            question = "Which way?"
        task = "video_shuffled" if self.shuffled else "video"
        return Row(
            self.id(index),
            question,
            answer,
            videos=(video,),
            task=task,
            target=tagged_answer(answer),
            meta={"ask": self.ask},
        )
