"""Short drawn videos: states in an order, faces that show an emotion, and headlines that a video confirms or
not."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.scenes import COLOURS, SHAPES, draw_shape
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.video import GeneratedVideo, encode

State = tuple[str, str, int, int]  # colour, shape, left, top
FEATURES = {
    "happy": (180, 0, 0),
    "sad": (0, 1, 6),
    "angry": (0, -8, 0),
    "surprised": (-1, 0, -6),
}  # emotion -> mouth, brows inside, brows height


def draw_states(size: int, side: int, fps: float, states: tuple[State, ...]) -> bytes:
    """Recipe: one frame per state, a coloured shape on grey."""
    frames = []
    for colour, shape, left, top in states:
        image = Image.new("RGB", (size, size), (230, 230, 230))
        draw_shape(ImageDraw.Draw(image), shape, (left, top, left + side, top + side), COLOURS[colour])
        frames.append(np.asarray(image))
    return encode(frames, fps, crf=8)


def draw_face(size: int, emotion: str, share: float) -> Image.Image:
    """A face that is neutral at share 0 and shows the emotion at share 1."""
    image = Image.new("RGB", (size, size), (200, 215, 230))
    pen = ImageDraw.Draw(image)
    unit = size / 56
    pen.ellipse((6 * unit, 6 * unit, 50 * unit, 50 * unit), fill=(240, 200, 160))
    mouth, inside, height = FEATURES[emotion]
    for x, way in ((19, 1), (37, -1)):
        pen.ellipse((x * unit - 2 * unit, 22 * unit, x * unit + 2 * unit, 26 * unit), fill=(30, 30, 30))
        low = (17 + height * share / 2) * unit
        pen.line(
            ((x - 4 * way) * unit, low, (x + 4 * way) * unit, low - inside * share * unit / 2),
            fill=(70, 40, 20),
            width=max(1, round(2 * unit)),
        )
    if mouth == -1:
        radius = (1 + 5 * share) * unit
        pen.ellipse(
            (28 * unit - radius, 39 * unit - radius, 28 * unit + radius, 39 * unit + radius),
            fill=(120, 20, 20),
        )
    else:
        bend = (8 if mouth else -8 if inside > 0 else -1) * share * unit
        points = [
            (28 * unit + dx * unit, 38 * unit + bend * (1 - (dx / 10) ** 2)) for dx in range(-10, 11, 2)
        ]
        pen.line(points, fill=(120, 20, 20), width=max(2, round(3 * unit)))
    return image


def film_face(size: int, frames: int, fps: float, emotion: str) -> bytes:
    """Recipe: a face that changes from neutral to an emotion in the first half of the video."""
    return encode(
        [np.asarray(draw_face(size, emotion, min(1.0, 2 * i / (frames - 1)))) for i in range(frames)],
        fps,
        crf=8,
    )


@dataclass(frozen=True, kw_only=True)
class DrawnVideo(GeneratedSource):
    """Videos of `frames` frames of `size` x `size` pixels."""

    size: int = 56
    frames: int = 8
    fps: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 28 or self.size % 2 or self.frames < 4:
            raise ConfigError(
                f"size={self.size} must be even and at least 28, and frames={self.frames} at least 4"
            )


@register("gen_video_states")
@dataclass(frozen=True, kw_only=True)
class GenVideoStates(DrawnVideo):
    """A shape that changes its colour in a cycle of three; the answer is the colour that comes next, as the
    letter of an option; task `video_states`.

    `meta.states` tells the shown states in order, "a red circle". The demonstration names them in its
    thought, with `observed` each in <observation> tags.
    Paper: the state prediction of MOSS-ChatV (arXiv:2509.21113), on drawn videos. Rewards: `mcq`,
    `process_order`, `observe_and_reason`.
    """

    shown: int = 4
    observed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 4 <= self.shown <= self.frames:
            raise ConfigError(
                f"shown={self.shown} states must be 4 or more, so that the cycle is seen to repeat, and at "
                f"most frames={self.frames}"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        cycle, shape = rng.sample(sorted(COLOURS), 3), rng.choice(SHAPES)
        place = rng.randint(2, self.size - 32), rng.randint(2, self.size - 32)
        order = [cycle[i % 3] for i in range(self.shown)]
        states = tuple((order[i * self.shown // self.frames], shape, *place) for i in range(self.frames))
        video = GeneratedVideo(draw_states, (self.size, 28, self.fps, states))
        options = sorted(cycle)
        letter = "ABC"[options.index(cycle[self.shown % 3])]
        told = [f"a {colour} {shape}" for colour in order]
        said = [f"{state.capitalize()}." for state in told]
        if self.observed:
            said = [f"<observation>{text}</observation>" for text in said]
        target = f"<think>{' '.join(said)}</think>{tagged_answer(letter)}"
        question = (
            "The shape changes its colour again and again. Tell its states in order, then say which colour "
            "comes next."
        )
        meta = {"states": told}
        return Row(
            self.id(index),
            question,
            letter,
            videos=(video,),
            choices=tuple(options),
            task="video_states",
            target=target,
            meta=meta,
        )


@register("gen_emotion")
@dataclass(frozen=True, kw_only=True)
class GenEmotion(DrawnVideo):
    """A drawn face that shows an emotion: happy, sad, angry or surprised; task `emotion`.

    Paper: the task of R1-Omni (arXiv:2503.05379), on drawn faces without sound. Reward: `classification`.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        emotion = rng.choice(sorted(FEATURES))
        video = GeneratedVideo(film_face, (self.size, self.frames, self.fps, emotion))
        question = "Which emotion does the face show: angry, happy, sad or surprised?"
        return Row(
            self.id(index), question, emotion, videos=(video,), task="emotion", target=tagged_answer(emotion)
        )


@register("gen_headline")
@dataclass(frozen=True, kw_only=True)
class GenHeadline(DrawnVideo):
    """A video of a moving shape under a headline that is right or has one false part: is it fake, "yes" or
    "no"? Task `verdict`.

    `meta.entity` is the false part of `meta.headline`, "" for a right one.
    Paper: the task of Fact-R1 (arXiv:2505.16836), on drawn videos. Reward: `classification`. Half of the
    headlines are fake.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        facts = {
            "colour": rng.choice(sorted(COLOURS)),
            "shape": rng.choice(SHAPES),
            "way": rng.choice(("left", "right")),
        }
        video = self.film(rng, facts)
        told, fake = dict(facts), rng.random() < 0.5
        part = rng.choice(sorted(facts))
        if fake:
            others = {"colour": sorted(COLOURS), "shape": list(SHAPES), "way": ["left", "right"]}
            told[part] = rng.choice([value for value in others[part] if value != facts[part]])
        headline = f"A {told['colour']} {told['shape']} moves to the {told['way']}"
        answer = "yes" if fake else "no"
        question = f'Headline: "{headline}". Is the headline fake, yes or no?'
        meta = {"entity": told[part] if fake else "", "headline": headline}
        return Row(
            self.id(index),
            question,
            answer,
            videos=(video,),
            task="verdict",
            target=tagged_answer(answer),
            meta=meta,
        )

    def film(self, rng: random.Random, facts: dict[str, str]) -> GeneratedVideo:
        """The video that the facts describe."""
        room, top = self.size - 30, rng.randint(2, self.size - 30)
        steps = [2 + (room - 4) * i // (self.frames - 1) for i in range(self.frames)]
        places = steps if facts["way"] == "right" else steps[::-1]
        states = tuple((facts["colour"], facts["shape"], left, top) for left in places)
        return GeneratedVideo(draw_states, (self.size, 26, self.fps, states))
