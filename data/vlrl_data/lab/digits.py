"""Classification, counting, grounding and detection of handwritten digits, alone or scattered over a
photograph."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab import shipped_images
from vlrl_data.lab.base import IN_PIXELS, GeneratedRows, GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

PlacedDigit = tuple[int, int, int, int]  # digit image, left, top, side (pixels)


def draw_digit(index: int, size: int, shift: tuple[int, int], noise: float, noise_seed: int) -> Image.Image:
    """One digit on black, shifted by `shift` pixels, plus Gaussian noise of `noise` x 255."""
    canvas = Image.new("L", (size, size))
    canvas.paste(shipped_images.digit(index, size), shift)
    if noise:
        grain = np.random.default_rng(noise_seed).normal(0, noise * 255, (size, size))
        canvas = Image.fromarray(np.clip(np.asarray(canvas) + grain, 0, 255).astype(np.uint8))
    return canvas.convert("RGB")


def draw_scene(
    photo: str,
    box: tuple[int, int, int, int],
    size: int,
    contrast: float,
    placed: tuple[PlacedDigit, ...],
    opaque: bool,
) -> Image.Image:
    """A crop of a photograph (its brightness times `contrast`) with digits on it: on black tiles, or as white
    ink."""
    scene = shipped_images.crop(photo, box, size, size).point(lambda value: int(value * contrast))
    for index, left, top, side in placed:
        ink = shipped_images.digit(index, side)
        scene.paste(
            ink.convert("RGB") if opaque else Image.new("RGB", ink.size, "white"),
            (left, top),
            None if opaque else ink,
        )
    return scene


def draw_small_digit(index: int, size: int, left: int, top: int, side: int, ground: int) -> Image.Image:
    """A white digit of `side` pixels on a picture of `size` x `size` of brightness `ground`."""
    canvas = Image.new("L", (size, size), ground)
    canvas.paste(255, (left, top), shipped_images.digit(index, side))
    return canvas.convert("RGB")


def scatter(
    rng: random.Random, count: int, size: int, sides: tuple[int, int], grid: int
) -> list[tuple[int, int, int]]:
    """`count` squares (left, top, side) that do not overlap, with corners on multiples of `grid`. Raises
    ConfigError if they cannot fit."""
    for _ in range(200):
        squares: list[tuple[int, int, int]] = []
        for _ in range(count * 40):
            if len(squares) == count:
                break
            side = rng.randint(*sides)
            left, top = (rng.randrange(0, (size - side) // grid + 1) * grid for _ in range(2))
            if all(
                left + side <= x or x + s <= left or top + side <= y or y + s <= top for x, y, s in squares
            ):
                squares.append((left, top, side))
        if len(squares) == count:
            return squares
    raise ConfigError(
        f"{count} digits of {sides[0]}-{sides[1]} pixels do not fit on {size} x {size}: raise `size` or "
        "lower `digit`, `high` or `others`"
    )


@register("lab_digits")
@dataclass(frozen=True, kw_only=True)
class LabDigits(GeneratedSource):
    """One handwritten digit; the answer is "0".."9".

    Harder with `noise` (standard deviation as a share of full brightness) and `shift` (pixels, either way).
    `count` 0: every image of the split once.
    """

    count: int = 0
    size: int = 56
    noise: float = 0.0
    shift: int = 0

    def __post_init__(self) -> None:
        shipped_images.check_split(self.split)

    def __call__(self) -> Sequence[Row]:
        return GeneratedRows(self.count or len(shipped_images.digit_ids(self.split)), self.with_task)

    def row(self, index: int) -> Row:
        ids = shipped_images.digit_ids(self.split)
        digit = ids[index % len(ids)]
        rng = self.rng(index)
        shift = (rng.randint(-self.shift, self.shift), rng.randint(-self.shift, self.shift))
        image = GeneratedImage(draw_digit, (digit, self.size, shift, self.noise, rng.getrandbits(32)))
        answer = str(shipped_images.label_of(digit))
        return Row(
            self.id(index),
            "Which digit?",
            answer,
            images=(image,),
            task="digits",
            target=tagged_answer(answer),
        )


@register("lab_small_digit")
@dataclass(frozen=True, kw_only=True)
class LabSmallDigit(GeneratedSource):
    """One handwritten digit of `side` pixels in one of `cells` x `cells` cells of a large black picture; the
    answer is "0".."9".

    For environment `zoom`: a policy whose pictures have fewer pixels (`policy.max_pixels`) has to enlarge the
    digit's part to read it. The digit lies within `jitter` pixels of its cell's middle; `meta["box"]`, for
    zoom's expert, is the square around that middle which always holds it. `labels`: the digits that occur. A
    share `guessed` of the demonstrations (`meta["turns"]`, for rollout `expert_turns`) answers at once with
    any digit: such a warm-up teaches both forms, and not which one pays. `ground`: the brightness of the
    picture (0-255); on the grey that processors map to 0, a digit stands out most.
    """

    size: int = 224
    cells: int = 4
    side: int = 10
    jitter: int = 4
    labels: tuple[int, ...] = tuple(range(10))
    guessed: float = 0.0
    ground: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.cells < 1
            or self.size % self.cells
            or not 1 <= self.side <= self.size // self.cells - 2 * self.jitter
        ):
            raise ConfigError(
                f"size={self.size} must be a multiple of cells={self.cells}; side={self.side} and "
                f"jitter={self.jitter} on both sides must fit a cell"
            )
        if len(self.labels) < 2 or not set(self.labels) <= set(range(10)):
            raise ConfigError(f"labels: {list(self.labels)} must name at least two of the digits 0 to 9")
        if not 0 <= self.guessed <= 1:
            raise ConfigError(
                f"guessed: {self.guessed} is not between 0 and 1; it is the share of demonstrations that "
                "do not zoom"
            )
        if not 0 <= self.ground <= 255:
            raise ConfigError(
                f"ground: {self.ground} is not between 0 and 255; it is the brightness of the picture "
                "behind the digit"
            )

    def row(self, index: int) -> Row:
        rng, cell = self.rng(index), self.size // self.cells
        label, x, y = (
            rng.choice(self.labels),
            cell * rng.randrange(self.cells),
            cell * rng.randrange(self.cells),
        )
        left, top = (
            start + (cell - self.side) // 2 + rng.randint(-self.jitter, self.jitter) for start in (x, y)
        )
        digit = rng.choice(shipped_images.ids_of_label(self.split, label))
        image = GeneratedImage(draw_small_digit, (digit, self.size, left, top, self.side, self.ground))
        margin = (cell - self.side) // 2 - self.jitter
        first, last = margin, margin + self.side + 2 * self.jitter
        meta: dict[str, Any] = {"box": [x + first, y + first, x + last, y + last]}
        if rng.random() < self.guessed:
            meta["turns"] = [tagged_answer(str(rng.choice(self.labels)))]
        return Row(
            self.id(index),
            "Which digit?",
            str(label),
            images=(image,),
            task="small_digit",
            target=tagged_answer(str(label)),
            meta=meta,
        )


@dataclass(frozen=True, kw_only=True)
class SceneTask(GeneratedSource):
    """Digits of `digit` pixels (a range from `digit_min`, if set) on a crop of a photograph of `size` x
    `size` pixels.

    Harder with `opaque` false (white ink instead of black tiles), a higher `contrast` of the photograph
    (0-1), and a smaller `grid`.
    """

    size: int = 112
    digit: int = 28
    digit_min: int = 0
    grid: int = 1
    contrast: float = 0.5
    opaque: bool = True
    photos: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.digit > self.size:
            raise ConfigError(f"digit: {self.digit} pixels is more than size {self.size}")

    def scene(self, rng: random.Random, labels: list[int]) -> tuple[GeneratedImage, tuple[PlacedDigit, ...]]:
        """An image with one digit per label, and the digits' places."""
        name, box = shipped_images.random_crop(rng, self.split, self.photos)
        squares = scatter(rng, len(labels), self.size, (self.digit_min or self.digit, self.digit), self.grid)
        placed = tuple(
            (rng.choice(shipped_images.ids_of_label(self.split, label)), *square)
            for label, square in zip(labels, squares)
        )
        return GeneratedImage(draw_scene, (name, box, self.size, self.contrast, placed, self.opaque)), placed


@register("lab_counting")
@dataclass(frozen=True, kw_only=True)
class LabCounting(SceneTask):
    """How many digits lie on a photograph; the answer is an int between `low` and `high`.

    With `named`, only one digit is asked about, among `others` different ones. With `told`, the question also
    states a count, which is right in that share of the rows and wrong in the others: a shortcut that needs no
    image.
    """

    low: int = 1
    high: int = 4
    named: bool = False
    others: int = 2
    told: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.told is not None and not (0 <= self.told <= 1 and self.low < self.high):
            raise ConfigError(
                f"told={self.told} must lie in [0, 1], and needs more than one count: low={self.low}, "
                f"high={self.high}"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        count = rng.randint(self.low, self.high)
        wanted = rng.randrange(10)
        rest = [digit for digit in range(10) if digit != wanted]
        labels = (
            [wanted] * count + rng.choices(rest, k=self.others)
            if self.named
            else rng.choices(range(10), k=count)
        )
        image, _ = self.scene(rng, labels)
        question = f"How many {wanted}s?" if self.named else "How many digits?"
        if self.told is not None:
            wrong = [other for other in range(self.low, self.high + 1) if other != count]
            question = f"I say {count if rng.random() < self.told else rng.choice(wrong)}. {question}"
        return Row(
            self.id(index),
            question,
            count,
            images=(image,),
            task="counting",
            target=tagged_answer(str(count)),
        )


@register("lab_grounding")
@dataclass(frozen=True, kw_only=True)
class LabGrounding(SceneTask):
    """Where a named digit is, among `others` different ones; the answer is [x1, y1, x2, y2] in pixels of the
    image.

    `target` writes the box in these pixels too; the trainer converts it to the policy's units.
    """

    digit: int = 56
    grid: int = 28
    others: int = 0

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        wanted = rng.randrange(10)
        labels = [wanted, *rng.sample([digit for digit in range(10) if digit != wanted], self.others)]
        image, placed = self.scene(rng, labels)
        _, left, top, side = placed[0]
        box = [left, top, left + side, top + side]
        return Row(
            self.id(index),
            f"Find the {wanted}.",
            box,
            images=(image,),
            task="grounding",
            target=tagged_answer(str(box)),
            meta={**IN_PIXELS},
        )


@register("lab_detection")
@dataclass(frozen=True, kw_only=True)
class LabDetection(SceneTask):
    """Every place of a named digit: `low` to `high` boxes [x1, y1, x2, y2] in pixels, sorted from the top
    left; "None" if there is none.

    In a share `absent` of the rows the digit is missing, like the negatives of open-vocabulary data. `others`
    is the number of other digits on the image; in a share `lure` of the rows without the named digit there is
    at least one other digit, so that only the name tells such rows apart. `labels`: the digits that occur.
    `target` as in lab_grounding.
    """

    grid: int = 28
    low: int = 1
    high: int = 2
    others: int = 1
    absent: float = 0.2
    lure: float = 1.0
    labels: tuple[int, ...] = tuple(range(10))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.absent <= 1 or not 0 <= self.lure <= 1 or not 1 <= self.low <= self.high:
            raise ConfigError(
                f"absent={self.absent} and lure={self.lure} must lie in [0, 1], and low={self.low} from 1 "
                f"to high={self.high}"
            )
        if len(self.labels) < 2 or not set(self.labels) <= set(range(10)):
            raise ConfigError(f"labels: {list(self.labels)} must name at least two of the digits 0 to 9")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        wanted = rng.choice(self.labels)
        count = 0 if rng.random() < self.absent else rng.randint(self.low, self.high)
        lured = not count and (self.lure == 1 or rng.random() < self.lure)
        rest = rng.choices(
            [digit for digit in self.labels if digit != wanted], k=max(self.others, int(lured))
        )
        image, placed = self.scene(rng, [wanted] * count + rest)
        boxes = sorted(
            ([left, top, left + side, top + side] for _, left, top, side in placed[:count]),
            key=lambda box: (box[1], box[0]),
        )
        target = tagged_answer(str(boxes) if boxes else "None")
        return Row(
            self.id(index),
            f"Find every {wanted}.",
            boxes,
            images=(image,),
            task="detection",
            target=target,
            meta={**IN_PIXELS},
        )
