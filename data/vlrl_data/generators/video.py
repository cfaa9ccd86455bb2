"""VideoSSR's tasks over a user's videos or a camera that moves over an image: anomaly grounding, object
counting, temporal jigsaw."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.scenes import SHAPES, draw_shape
from vlrl_data.generators.source_images import (
    GeneratedFromImages,
    Reference,
    files_of,
    identity,
    of_split,
    pan,
)
from vlrl_data.lab.base import tagged_answer
from vlrl_data.media.video import VIDEO_SUFFIXES, Frames, GeneratedVideo, decode, encode

BaseVideo = tuple[
    Reference, int, int, tuple[float, float, float, float]
]  # source, side, frames, path of the camera


def another_order(count: int, seed: int) -> np.ndarray:
    """A random order of 0..count-1 other than the sorted one."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    return order if (order != np.arange(count)).any() else order[::-1]


def map_frames(frames: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """Every frame, changed by itself."""
    return np.stack([np.asarray(change(Image.fromarray(frame))) for frame in frames])


def zoomed(image: Image.Image) -> Image.Image:
    """The middle half of the sides, resized to the whole."""
    width, height = image.size
    return image.crop((width // 4, height // 4, width - width // 4, height - height // 4)).resize(
        image.size, Image.Resampling.BICUBIC
    )


CORRUPTIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "grayscale": lambda frames, seed: np.repeat(frames.mean(-1, keepdims=True), 3, -1).astype(np.uint8),
    "invert": lambda frames, seed: 255 - frames,
    "channels": lambda frames, seed: frames[..., [2, 0, 1]],
    "rotate": lambda frames, seed: np.rot90(frames, 2, axes=(1, 2)),
    "mirror": lambda frames, seed: frames[:, :, ::-1],
    "noise": lambda frames, seed: np.clip(
        frames + np.random.default_rng(seed).normal(0, 60, frames.shape), 0, 255
    ).astype(np.uint8),
    "freeze": lambda frames, seed: np.repeat(frames[:1], len(frames), 0),
    "shuffle": lambda frames, seed: frames[another_order(len(frames), seed)],
    "stutter": lambda frames, seed: frames[np.arange(len(frames)) // 3 * 3],
    "swap": lambda frames, seed: np.roll(frames, len(frames) // 2, 0),
    "zoom": lambda frames, seed: map_frames(frames, zoomed),
    "blur": lambda frames, seed: map_frames(
        frames, lambda image: image.filter(ImageFilter.GaussianBlur(max(image.size) / 25))
    ),
    "saturation": lambda frames, seed: map_frames(
        frames, lambda image: ImageEnhance.Color(image).enhance(4.0)
    ),
}


@lru_cache(maxsize=16)
def base_frames(base: BaseVideo) -> np.ndarray:
    """The unchanged video: (frames, side, side, 3) uint8."""
    reference, side, frames, path = base
    if reference[0] != "video":
        return pan(reference, side, frames, path)
    clip = decode(reference[1], Frames(fps=0, min_frames=1, max_frames=frames))
    found = [
        np.asarray(Image.fromarray(frame).resize((side, side), Image.Resampling.BICUBIC))
        for frame in clip.frames_THWC
    ]
    return np.stack([found[i * len(found) // frames] for i in range(frames)])


def corrupt(base: BaseVideo, fps: float, kind: str, start: int, end: int, seed: int) -> bytes:
    """Recipe: frames start..end - 1 corrupted."""
    frames = base_frames(base).copy()
    frames[start:end] = CORRUPTIONS[kind](frames[start:end], seed)
    return encode(frames, fps)


def painted(base: BaseVideo, fps: float, marks: tuple[tuple[int, str, int, int, int], ...]) -> bytes:
    """Recipe: a white shape (frame, shape, left, top, side) painted on single frames."""
    frames = base_frames(base).copy()
    for number, shape, left, top, side in marks:
        image = Image.fromarray(frames[number])
        draw_shape(ImageDraw.Draw(image), shape, (left, top, left + side, top + side), (255, 255, 255))
        frames[number] = np.asarray(image)
    return encode(frames, fps, crf=8)


def segment(base: BaseVideo, fps: float, first: int, last: int) -> bytes:
    """Recipe: frames first..last - 1."""
    return encode(base_frames(base)[first:last], fps)


@dataclass(frozen=True, kw_only=True)
class GeneratedFromVideos(GeneratedFromImages):
    """A generator over `videos` (a folder), or over a camera that moves over images. `size` x `size` pixels,
    `frames` at `fps` per second."""

    videos: str = ""
    size: int = 84
    frames: int = 16
    fps: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 or self.frames < 4:
            raise ConfigError(f"size={self.size} must be even and frames={self.frames} at least 4")

    def base(self, rng: random.Random) -> BaseVideo:
        """A random video to start from."""
        if self.videos:
            file = rng.choice(of_split(files_of(self.videos, VIDEO_SUFFIXES), self.split))
            return (("video", *identity(("file", file))[1:]), self.size, self.frames, (0, 0, 0, 0))
        corners = [(0.0, 0.0, 1.0, 1.0), (1.0, 0.0, 0.0, 1.0), (0.0, 0.5, 1.0, 0.5), (0.5, 1.0, 0.5, 0.0)]
        return (identity(self.references(rng)[0]), self.size, self.frames, rng.choice(corners))


@register("gen_video_anomaly")
@dataclass(frozen=True, kw_only=True)
class GenVideoAnomaly(GeneratedFromVideos):
    """A stretch of a video is corrupted (`kinds`); the answer is [start, end] in seconds.

    Paper: VideoSSR, arXiv:2511.06281, sec. 3 (anomaly grounding). Reward: `temporal_iou`. Deviates: strengths
    are ours; swap exchanges the halves of the stretch; the stretch lasts between a quarter and half of the
    video. Edge: on grey images changes of colour are invisible; leave them out.
    """

    kinds: tuple[str, ...] = tuple(CORRUPTIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.kinds:
            if kind not in CORRUPTIONS:
                raise ConfigError(f"kinds: {kind!r} is unknown. Known: {', '.join(CORRUPTIONS)}.")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        kind = rng.choice(self.kinds)
        length = rng.randint(self.frames // 4, self.frames // 2)
        start = rng.randint(0, self.frames - length)
        video = GeneratedVideo(
            corrupt, (self.base(rng), self.fps, kind, start, start + length, rng.getrandbits(32))
        )
        answer = [start / self.fps, (start + length) / self.fps]
        question = "Between which seconds is something wrong with the video? Answer with start-end."
        meta = {"kind": kind, "duration": self.frames / self.fps}
        target = tagged_answer(f"{answer[0]:g}-{answer[1]:g}")
        return Row(
            self.id(index), question, [answer], videos=(video,), task="anomaly", target=target, meta=meta
        )


@register("gen_video_counting")
@dataclass(frozen=True, kw_only=True)
class GenVideoCounting(GeneratedFromVideos):
    """White circles, squares and triangles are painted on single frames; the answer counts each kind:
    [circles, squares, triangles].

    Paper: VideoSSR, arXiv:2511.06281, sec. 3 (object counting). Reward: `counts`. Deviates: shapes are white,
    at most one per frame.
    """

    most: int = 3
    side: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most * len(SHAPES) > self.frames or self.side >= self.size:
            raise ConfigError(
                f"most={self.most}: each of {len(SHAPES)} shapes needs a frame of its own "
                f"(frames={self.frames}), and side < size"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        counts = [rng.randint(0, self.most) for _ in SHAPES]
        numbers = rng.sample(range(self.frames), sum(counts))
        shapes = [shape for shape, count in zip(SHAPES, counts) for _ in range(count)]
        room = self.size - self.side - 1
        marks = tuple(
            (number, shape, rng.randint(0, room), rng.randint(0, room), self.side)
            for number, shape in zip(numbers, shapes)
        )
        video = GeneratedVideo(painted, (self.base(rng), self.fps, marks))
        question = (
            "How many white circles, squares and triangles flash up in the video? Answer with three numbers."
        )
        return Row(
            self.id(index),
            question,
            counts,
            videos=(video,),
            task="video_counting",
            target=tagged_answer(",".join(map(str, counts))),
        )


@register("gen_video_jigsaw")
@dataclass(frozen=True, kw_only=True)
class GenVideoJigsaw(GeneratedFromVideos):
    """A video cut into `clips` parts that are shown in another order; the answer lists the clips as shown
    (from 1) in their right order.

    Paper: VideoSSR, arXiv:2511.06281, sec. 3 (temporal jigsaw). Reward: `order` with metric footrule. Edge:
    two clips ask which one comes first.
    """

    clips: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.clips <= 8 or self.frames // self.clips < 2:
            raise ConfigError(f"clips={self.clips} must be 2-8, with at least 2 of frames={self.frames} each")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        base, length = self.base(rng), self.frames // self.clips
        shown = rng.sample(range(self.clips), self.clips)  # part shown at each place
        videos = tuple(
            GeneratedVideo(segment, (base, self.fps, part * length, (part + 1) * length)) for part in shown
        )
        answer = [shown.index(part) + 1 for part in range(self.clips)]
        options_text = " ".join(f"{i + 1}: <video>" for i in range(self.clips))
        question = (
            f"{options_text} These parts of one video are out of order. Give their numbers in the right "
            "order."
        )
        return Row(
            self.id(index),
            question,
            answer,
            videos=videos,
            task="video_jigsaw",
            target=tagged_answer(" ".join(map(str, answer))),
        )
