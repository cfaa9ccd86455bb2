"""Several pictures against each other, and one turned: odd one out, same or different, rotation."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageEnhance, ImageOps

from vlrl.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.pictures import FromPictures, Reference, fitted, identity
from vlrl_data.lab.base import demonstrate
from vlrl_data.media import Made

LETTERS = "ABCDEFGHIJ"


def draw_view(reference: Reference, size: int, place: tuple[float, float], share: float, flip: bool, tone: float) -> Image.Image:
    """A square part of a picture, perhaps flipped, its brightness times `tone`."""
    view = fitted(reference, size, size, place, share)
    view = ImageOps.mirror(view) if flip else view
    return ImageEnhance.Brightness(view).enhance(tone)


def augmented(rng: random.Random, reference: Reference, size: int, strength: float) -> Made:
    """A view of a picture: strength 0 is the middle of it, 1 any part from 40 % of its side on, flipped half the time, 40 % brighter or darker."""
    place = tuple(0.5 + strength * (rng.random() - 0.5) for _ in range(2))
    flip = rng.random() < strength / 2
    return Made(draw_view, (reference, size, place, 1 - 0.6 * strength * rng.random(), flip, 1 + strength * rng.uniform(-0.4, 0.4)))


def draw_turned(reference: Reference, size: int, place: tuple[float, float], share: float, degrees: int) -> Image.Image:
    """A square part of a picture, turned clockwise."""
    return fitted(reference, size, size, place, share).rotate(-degrees)


@register("gen_odd_one_out")
@dataclass(frozen=True, kw_only=True)
class GenOddOneOut(FromPictures):
    """`shown` pictures: all but one are views of one picture. The answer is the letter of the other one.

    vlrl original (a multi-image contrast in the manner of MiCo). Reward: `exact`. Harder with a higher `strength` of the augmentation (0-1).
    """

    shown: int = 3
    size: int = 84
    strength: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 3 <= self.shown <= 10 or not 0 <= self.strength <= 1:
            raise ConfigError(f"shown={self.shown} must be 3-10 and strength={self.strength} in [0, 1]")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        same, other = map(identity, self.references(rng, 2))
        odd = rng.randrange(self.shown)
        images = tuple(augmented(rng, other if i == odd else same, self.size, self.strength) for i in range(self.shown))
        said = " ".join(f"{letter}: <image>" for letter in LETTERS[: self.shown])
        question = f"{said} Which one shows another scene than the rest?"
        answer = LETTERS[odd]
        return Row(self.id(index), question, answer, images=images, task="odd_one_out", target=demonstrate(answer))


@register("gen_mico")
@dataclass(frozen=True, kw_only=True)
class GenMico(FromPictures):
    """Two views of one picture and one of another, shuffled; for each pair (1-2, 1-3, 2-3): same scene, T or F.

    Paper: MiCo, arXiv:2506.22434, sec. 3. Reward: `true_false`. `images` are weakly augmented (to sample from); `meta.train_images` holds the
    strongly augmented ones (to train on), as the paper's augmented GRPO wants. Deviates: the third is a view of another picture, or (with `near`)
    of another part of the same one, where the paper takes neighbouring video frames and edited pictures; the strengths are ours.
    """

    size: int = 84
    weak: float = 0.2
    strong: float = 0.7
    near: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weak <= self.strong <= 1:
            raise ConfigError(f"weak={self.weak}, strong={self.strong}: give 0 <= weak <= strong <= 1")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        same, other = map(identity, self.references(rng, 2))
        third = rng.randrange(3)
        left, right = (0.0, 0.5), (1.0, 0.5)
        views = []
        for strength in (self.weak, self.strong):
            if self.near:
                places = [right if i == third else left for i in range(3)]
                views.append(tuple(Made(draw_view, (same, self.size, place, 0.5, False, 1 + strength * rng.uniform(-0.4, 0.4))) for place in places))
            else:
                views.append(tuple(augmented(rng, other if i == third else same, self.size, strength) for i in range(3)))
        answer = " ".join("F" if third in pair else "T" for pair in ((0, 1), (0, 2), (1, 2)))
        question = "1: <image> 2: <image> 3: <image> Do 1 and 2, 1 and 3, 2 and 3 show the same scene? Answer T or F for each pair, in this order."
        meta = {"train_images": views[1]}
        return Row(self.id(index), question, answer, images=views[0], task="contrast", target=demonstrate(answer), meta=meta)


@register("gen_rotation")
@dataclass(frozen=True, kw_only=True)
class GenRotation(FromPictures):
    """A picture turned clockwise by one of `degrees`; the answer says by how much.

    Paper: rotation prediction, Gidaris et al. 2018, arXiv:1803.07728. Reward: `angle` (or `exact`).
    """

    size: int = 84
    degrees: tuple[int, ...] = (0, 90, 180, 270)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.degrees or any(angle % 90 for angle in self.degrees):
            raise ConfigError(f"degrees: {self.degrees} must be multiples of 90, so that no corner gives the answer away")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        angle = rng.choice(self.degrees)
        reference = identity(self.references(rng)[0])
        image = Made(draw_turned, (reference, self.size, (rng.random(), rng.random()), rng.uniform(0.6, 1), angle))
        said = ", ".join(map(str, self.degrees))
        question = f"By how many degrees was the picture turned clockwise? One of {said}."
        return Row(self.id(index), question, angle, images=(image,), task="rotation", target=demonstrate(str(angle)))
