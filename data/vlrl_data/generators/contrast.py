"""Tasks that compare images, and rotation prediction: odd one out, same or different, rotation."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageEnhance, ImageOps

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.source_images import GeneratedFromImages, Reference, fitted, identity
from vlrl_data.lab.base import tagged_answer
from vlrl_data.media.images import GeneratedImage

LETTERS = "ABCDEFGHIJ"


def draw_view(
    reference: Reference, size: int, place: tuple[float, float], share: float, flip: bool, tone: float
) -> Image.Image:
    """A square part of an image, mirrored if `flip`, its brightness multiplied by `tone`."""
    view = fitted(reference, size, size, place, share)
    view = ImageOps.mirror(view) if flip else view
    return ImageEnhance.Brightness(view).enhance(tone)


def augmented(rng: random.Random, reference: Reference, size: int, strength: float) -> GeneratedImage:
    """A random view of an image.

    Strength 0: its middle; 1: any part of at least 40 % of its side, mirrored half the time, up to 40 %
    brighter or darker.
    """
    place = (0.5 + strength * (rng.random() - 0.5), 0.5 + strength * (rng.random() - 0.5))
    flip = rng.random() < strength / 2
    return GeneratedImage(
        draw_view,
        (
            reference,
            size,
            place,
            1 - 0.6 * strength * rng.random(),
            flip,
            1 + strength * rng.uniform(-0.4, 0.4),
        ),
    )


def draw_turned(
    reference: Reference, size: int, place: tuple[float, float], share: float, degrees: int
) -> Image.Image:
    """A square part of an image, rotated clockwise."""
    return fitted(reference, size, size, place, share).rotate(-degrees)


@register("gen_odd_one_out")
@dataclass(frozen=True, kw_only=True)
class GenOddOneOut(GeneratedFromImages):
    """`shown` images: all but one are views of the same image. The answer is the letter of the other one.

    vlrl original (a multi-image contrast in the manner of MiCo). Reward: `exact`. Harder with a higher
    `strength` of the augmentation (0-1).
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
        images = tuple(
            augmented(rng, other if i == odd else same, self.size, self.strength) for i in range(self.shown)
        )
        options_text = " ".join(f"{letter}: <image>" for letter in LETTERS[: self.shown])
        question = f"{options_text} Which one shows another scene than the rest?"
        answer = LETTERS[odd]
        return Row(
            self.id(index), question, answer, images=images, task="odd_one_out", target=tagged_answer(answer)
        )


@register("gen_mico")
@dataclass(frozen=True, kw_only=True)
class GenMico(GeneratedFromImages):
    """Two views of one image and one of another, shuffled; for each pair (1-2, 1-3, 2-3): same scene, T or F.

    Paper: MiCo, arXiv:2506.22434, sec. 3. Reward: `true_false`. `images` are weakly augmented (to sample
    with); `meta.train_images` holds the strongly augmented ones (to train on), for the paper's augmented
    GRPO. Deviates: the third is a view of another image, or (with `near`) of another part of the same one,
    where the paper takes neighbouring video frames and edited images; the strengths are ours.
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
                tones = [1 + strength * rng.uniform(-0.4, 0.4) for _ in places]
                views.append(
                    tuple(
                        GeneratedImage(draw_view, (same, self.size, p, 0.5, False, tone))
                        for p, tone in zip(places, tones)
                    )
                )
            else:
                views.append(
                    tuple(
                        augmented(rng, other if i == third else same, self.size, strength) for i in range(3)
                    )
                )
        answer = " ".join("F" if third in pair else "T" for pair in ((0, 1), (0, 2), (1, 2)))
        question = (
            "1: <image> 2: <image> 3: <image> Do 1 and 2, 1 and 3, 2 and 3 show the same scene? Answer T "
            "or F for each pair, in this order."
        )
        meta = {"train_images": views[1]}
        return Row(
            self.id(index),
            question,
            answer,
            images=views[0],
            task="contrast",
            target=tagged_answer(answer),
            meta=meta,
        )


@register("gen_rotation")
@dataclass(frozen=True, kw_only=True)
class GenRotation(GeneratedFromImages):
    """An image rotated clockwise by one of `degrees`; the answer is the angle.

    Paper: rotation prediction, Gidaris et al. 2018, arXiv:1803.07728. Reward: `angle` (or `exact`).
    """

    size: int = 84
    degrees: tuple[int, ...] = (0, 90, 180, 270)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.degrees or any(angle % 90 for angle in self.degrees):
            raise ConfigError(
                f"degrees: {self.degrees} must be multiples of 90: other angles leave black corners, which "
                "give the answer away"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        angle = rng.choice(self.degrees)
        reference = identity(self.references(rng)[0])
        image = GeneratedImage(
            draw_turned, (reference, self.size, (rng.random(), rng.random()), rng.uniform(0.6, 1), angle)
        )
        options_text = ", ".join(map(str, self.degrees))
        question = f"By how many degrees was the picture turned clockwise? One of {options_text}."
        return Row(
            self.id(index),
            question,
            angle,
            images=(image,),
            task="rotation",
            target=tagged_answer(str(angle)),
        )
