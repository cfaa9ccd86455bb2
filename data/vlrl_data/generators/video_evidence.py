"""Long drawn videos in which a few frames hold the answer: evidence, frames around it that point to it, and
nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.scenes import COLOURS, draw_shape
from vlrl_data.lab.base import GeneratedSource
from vlrl_data.media.video import GeneratedVideo, encode

EVIDENCE, CONTEXT, DISTRACTOR = 5, 3, 1


def film(size: int, fps: float, colour: str, scores: tuple[int, ...], seed: str) -> bytes:
    """Recipe: a coloured circle on evidence, a grey square on context, stripes of some grey on
    distractors."""
    rng = random.Random(seed)
    frames = []
    for score in scores:
        image = Image.new("RGB", (size, size), (230, 230, 230))
        pen = ImageDraw.Draw(image)
        if score == EVIDENCE:
            draw_shape(pen, "circle", (3, 3, size - 3, size - 3), COLOURS[colour])
        elif score == CONTEXT:
            pen.rectangle((size // 4, size // 4, 3 * size // 4, 3 * size // 4), outline=(60, 60, 60), width=2)
        else:
            grey = rng.randint(120, 220)
            pen.rectangle((0, rng.randint(0, size // 2), size, size), fill=(grey, grey, grey))
        frames.append(np.asarray(image))
    return encode(frames, fps, crf=8)


def difficulty(evidence: list[int], frames: int) -> float:
    """Evidence difficulty index: EDI = (1 - m / N) Var(x), x the places of the m evidence frames in [0,
    1]."""
    return (
        (1 - len(evidence) / frames) * float(np.var([place / (frames - 1) for place in evidence]))
        if evidence
        else 0.0
    )


@register("gen_video_evidence")
@dataclass(frozen=True, kw_only=True)
class GenVideoEvidence(GeneratedSource):
    """Which colour has the circle? It is on `seen` frames in a row, in one or two places of a video of
    `frames` seconds; frames around them hint.

    For environment `conan.video_clips`: `meta.frame_scores` rates every frame (5 evidence, 3 context, 1
    distractor), `meta.relevant` has the places of the evidence, `meta.descriptions` tells what is on it,
    `meta.shown` are the `first` frames that are shown
    first, one of which is evidence or context; `meta.edi` is the evidence difficulty. The demonstration
    (`target`, its turns in `meta.turns`) rates the frames, asks for the clip around the context if no
    evidence is shown, and answers. Paper: the rows of Conan (arXiv:2510.20470, sec. 2), on drawn videos. Task
    `video_evidence`; reward: `mcq`.
    """

    frames: int = 24
    size: int = 28
    seen: int = 3
    around: int = 3
    first: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.size < 28
            or self.size % 2
            or not 2 <= self.first <= self.frames
            or self.frames < 4 * (self.seen + self.around)
        ):
            least = 4 * (self.seen + self.around)
            raise ConfigError(
                f"size={self.size} must be even and at least 28, first={self.first} from 2 to "
                f"frames={self.frames}, which must be at least {least}"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        shown = [round(i * (self.frames - 1) / (self.first - 1)) for i in range(self.first)]
        scores = self.scores(rng, shown)
        options = rng.sample(sorted(COLOURS), 4)
        letter = rng.choice("ABCD")
        colour = options["ABCD".index(letter)]
        names = {EVIDENCE: f"a {colour} circle", CONTEXT: "an empty square", DISTRACTOR: "grey ground"}
        turns = self.demonstration(scores, shown, letter)
        video = GeneratedVideo(film, (self.size, 1.0, colour, tuple(scores), f"{self.id(index)}|ground"))
        evidence = [place for place, score in enumerate(scores) if score == EVIDENCE]
        meta = {
            "frame_scores": scores,
            "descriptions": [names[score] for score in scores],
            "shown": shown,
            "turns": turns,
            "relevant": evidence,
        }
        meta |= {"edi": difficulty(evidence, self.frames), "rounds": len(turns)}
        question = "Which colour has the circle of the video?"
        return Row(
            self.id(index),
            question,
            letter,
            videos=(video,),
            choices=tuple(options),
            task="video_evidence",
            target="".join(turns),
            meta=meta,
        )

    def scores(self, rng: random.Random, shown: list[int]) -> list[int]:
        """A rating per frame. Around a frame that is shown first there is evidence, perhaps elsewhere too."""
        scores = [DISTRACTOR] * self.frames
        near = rng.choice(shown) + rng.randint(-self.around, self.around)
        for centre in [near, *([rng.randrange(self.frames)] if rng.random() < 0.5 else [])]:
            start = min(max(centre - self.seen // 2, 0), self.frames - self.seen)
            for place in range(
                max(start - self.around, 0), min(start + self.seen + self.around, self.frames)
            ):
                score = EVIDENCE if start <= place < start + self.seen else CONTEXT
                scores[place] = max(scores[place], score)
        return scores

    def demonstration(self, scores: list[int], shown: list[int], letter: str) -> list[str]:
        """The turns of an expert: at most one clip, then the answer."""
        turns, now = [], shown
        if not any(scores[place] == EVIDENCE for place in shown):
            hint = next(place for place in shown if scores[place] == CONTEXT)
            low, high = max(hint - self.around, 0), min(hint + self.around, self.frames - 1)
            clip = f"{stamp(low)}-{stamp(high)}"
            turns.append(
                f"<score>{rated(scores, shown)}</score><think>A hint at "
                f"{stamp(hint)}.</think><clip>{clip}</clip><answer></answer>"
            )
            now = [place for place in range(low, high + 1) if place not in shown]
        turns.append(
            f"<score>{rated(scores, now)}</score><think>I see the "
            f"circle.</think><clip></clip><answer>{letter}</answer>"
        )
        return turns


def stamp(second: int) -> str:
    """hh:mm:ss of a time below a minute or more."""
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def rated(scores: list[int], places: list[int]) -> str:
    """The ratings of frames as an expert writes them; distractors are left out."""
    return ", ".join(f"{stamp(place)}: {scores[place]}" for place in places if scores[place] >= CONTEXT)
