"""Videos as `Media`: files, bytes and frame folders, decoded by PyAV, decord or torchcodec, with clips cut
out by time.

Frames are chosen as in qwen-vl-utils `smart_nframes`: `fps` frames per second of the clip, between
`min_frames` and `max_frames`, evenly spread from the first frame to the last, an even number of them (the
Qwen families merge frames in pairs).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError, suggest
from vlrl.services.failures import of_the_machine
from vlrl.types import Clip, Media, MediaError
from vlrl_data.media.images import (
    IMAGE_SUFFIXES,
    LIMITS,
    EqualByKey,
    ImageLimits,
    digest,
    file_key,
    open_image,
    os_fault,
    shorten,
)
from vlrl_data.media.video_decoders import BACKENDS, Decoder, first_installed

VIDEO_SUFFIXES = frozenset({".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v"})
FRAME_FACTOR = 2
MAX_CLIP_BYTES = 4 << 30  # of a decoded clip


@dataclass(frozen=True)
class Frames:
    """Which frames of a video are used, and their size.

    Pixels are limited per frame (`frame_pixels`) and over all frames (`total_pixels`); 0: no limit. `fps` 0
    keeps every frame. `backend`: auto (the first that is installed), pyav, decord or torchcodec.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    frame_pixels: int = 0
    total_pixels: int = 0
    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.backend != "auto" and self.backend not in BACKENDS:
            raise ConfigError(
                f"backend: no video backend {self.backend!r}.{suggest(self.backend, ['auto', *BACKENDS])}"
            )
        if self.fps < 0 or not 1 <= self.min_frames <= self.max_frames:
            raise ConfigError(
                f"fps={self.fps}, min_frames={self.min_frames}, max_frames={self.max_frames}: give fps >= "
                "0, 1 <= min_frames <= max_frames"
            )

    def pick(self, total: int, fps: float) -> np.ndarray:
        """Indices of the frames to keep, of `total` at `fps` per second."""
        if not self.fps and total <= self.max_frames:
            return np.arange(total)
        wanted = total / fps * self.fps if self.fps else total
        count = min(max(wanted, self.min_frames), self.max_frames, total)
        count = max(FRAME_FACTOR, math.floor(count / FRAME_FACTOR) * FRAME_FACTOR)
        return np.linspace(0, total - 1, min(count, total)).round().astype(int)

    def side(self, width: int, height: int, count: int) -> tuple[int, int]:
        """Width and height of a frame within the pixel limits (never larger than the frame is)."""
        limits = [
            width * height,
            self.frame_pixels or math.inf,
            self.total_pixels / count if self.total_pixels else math.inf,
        ]
        scale = math.sqrt(min(limits) / (width * height))
        return (width, height) if scale == 1 else (max(1, int(width * scale)), max(1, int(height * scale)))


NATIVE = Frames(fps=0.0)
SAMPLED = Frames()


def decode(
    source: str | bytes, frames: Frames, span: tuple[float | None, float | None] = (None, None)
) -> Clip:
    """The picked frames of a video file (a path, or its bytes) between two times in seconds. Raises
    MediaError."""
    name = first_installed() if frames.backend == "auto" else frames.backend
    place = f"video of {len(source)} bytes" if isinstance(source, bytes) else shorten(source)
    if isinstance(source, str):
        check_file(source)
    open_with: Callable[[str | bytes], Decoder] = BACKENDS[name]
    try:
        with open_with(source) as video:
            first, last = _window(video.total, video.fps, span, place)
            keep = frames.pick(last - first, video.fps)
            images = _collect(video.frames(keep + first), len(keep), frames, place)
            fps = video.fps
    except MediaError:
        raise
    except (
        Exception
    ) as error:  # each backend has its own error types; all of them mean that the file cannot be decoded
        if of_the_machine(error):  # no fault of the file
            raise
        raise MediaError(
            f"{place}: {name} cannot decode it: {type(error).__name__}: {str(error).strip()[:200]}"
        ) from error
    if len(images) != len(keep):
        raise MediaError(f"{place}: {name} gave {len(images)} of {len(keep)} frames (the file is cut short)")
    return Clip(images, len(keep) / (last - first) * fps)


def _window(total: int, fps: float, span: tuple[float | None, float | None], place: str) -> tuple[int, int]:
    if total < 1 or not fps > 0:
        raise MediaError(f"{place}: it has no frames (total {total}, fps {fps})")
    start, end = span
    first = 0 if start is None else math.ceil(start * fps - 1e-6)
    last = total if end is None else min(total, math.ceil(end * fps - 1e-6))
    if not 0 <= first < last:
        raise MediaError(
            f"{place}: no frame between {start} and {end} s; the video lasts {total / fps:.2f} s"
        )
    return first, last


def _collect(images: Iterable[np.ndarray], count: int, frames: Frames, place: str) -> np.ndarray:
    """Up to `count` frames as one array, each made as small as the limits say when it comes: memory is that
    of the result and one frame. Raises MediaError for frames of several sizes and for a clip beyond
    `MAX_CLIP_BYTES`."""
    clip, shape, number = np.zeros((0, 1, 1, 3), np.uint8), (0, 0, 0), -1
    for number, image in enumerate(images):
        if number == 0:
            shape = image.shape
            width, height = frames.side(shape[1], shape[0], count)
            if count * height * width * 3 > MAX_CLIP_BYTES:
                raise MediaError(
                    f"{place}: {count} frames of {width} x {height} pixels take "
                    f"{count * height * width * 3} bytes, over the limit of {MAX_CLIP_BYTES}; set "
                    "frame_pixels, total_pixels or max_frames"
                )
            clip = np.empty((count, height, width, 3), np.uint8)
        if image.shape != shape:
            sizes = sorted({shape[1::-1], image.shape[1::-1]})
            raise MediaError(f"{place}: the frames differ in size: {sizes}")
        clip[number] = _resized(image, clip.shape[2], clip.shape[1])
    return clip[: number + 1]


def _resized(image: np.ndarray, width: int, height: int) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


@dataclass(frozen=True, eq=False)
class StoredVideo(EqualByKey, Media):
    """A video file, its bytes, or its frame files in order (then `rate` is their frames per second). `span`:
    (start, end) in seconds."""

    source: str | bytes | tuple[str, ...]
    frames: Frames = SAMPLED
    span: tuple[float | None, float | None] = (None, None)
    rate: float = 2.0
    limits: ImageLimits = LIMITS
    kind: Literal["image", "video"] = field(default="video", init=False)

    @cached_property
    def key(self) -> str:
        if isinstance(self.source, tuple):
            content = digest(*(file_key(file) for file in self.source), repr(self.rate))
        else:
            content = (
                digest("bytes", self.source) if isinstance(self.source, bytes) else file_key(self.source)
            )
        return digest("video", content, repr(self.frames), repr(self.span))

    def load(self) -> Clip:
        if isinstance(self.source, tuple):
            return self._from_files(self.source)
        return decode(self.source, self.frames, self.span)

    def check(self) -> None:
        for file in (
            self.source
            if isinstance(self.source, tuple)
            else [self.source]
            if isinstance(self.source, str)
            else []
        ):
            check_file(file)
        if not self.source:
            raise MediaError("a video without frames or bytes")

    def _from_files(self, files: tuple[str, ...]) -> Clip:
        first, last = _window(len(files), self.rate, self.span, files[0] if files else "frame folder")
        keep = self.frames.pick(last - first, self.rate)
        images = (np.asarray(open_image(files[first + i], self.limits)) for i in keep)
        clip = _collect(images, len(keep), self.frames, files[0])
        return Clip(clip, len(keep) / (last - first) * self.rate)


@dataclass(frozen=True, eq=False)
class GeneratedVideo(EqualByKey, Media):
    """A video file whose bytes `recipe(*args)` writes, where `recipe` is a module-level pure function of
    plain arguments.

    As with `GeneratedImage`, the key names the recipe and seeds the sampling of a prompt.
    """

    recipe: Callable[..., bytes]
    args: tuple[Any, ...] = ()
    frames: Frames = NATIVE
    kind: Literal["image", "video"] = field(default="video", init=False)

    @cached_property
    def key(self) -> str:
        return digest(
            "made", f"{self.recipe.__module__}.{self.recipe.__qualname__}", repr(self.args), repr(self.frames)
        )

    def load(self) -> Clip:
        return decode(self.recipe(*self.args), self.frames)


def check_file(path: str) -> None:
    """Raises MediaError unless the path is a file that is not empty."""
    try:
        if not Path(path).is_file():
            raise MediaError(f"{shorten(path)}: no such file")
        if not Path(path).stat().st_size:
            raise MediaError(f"{shorten(path)}: the file is empty")
    except OSError as error:
        if of_the_machine(error):
            raise
        raise MediaError(f"{shorten(path)}: {os_fault(error)}") from None


def frame_files(folder: str | Path) -> tuple[str, ...]:
    """The image files of a folder in natural order (frame 2 before frame 10). Raises MediaError if there is
    none."""
    try:
        files = (
            [file for file in Path(folder).iterdir() if file.suffix.lower() in IMAGE_SUFFIXES]
            if Path(folder).is_dir()
            else []
        )
    except OSError as error:
        raise MediaError(f"{shorten(str(folder))}: {os_fault(error)}") from None
    if not files:
        raise MediaError(
            f"{shorten(str(folder))}: not a folder with images ({', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    natural = sorted(
        files,
        key=lambda file: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.name)],
    )
    return tuple(map(str, natural))


def encode(frames_THWC: Sequence[np.ndarray] | np.ndarray, fps: float, crf: int = 18) -> bytes:
    """An mp4 (H.264) of uint8 RGB frames with even sides."""
    import io
    from fractions import Fraction

    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264",
            rate=Fraction(fps).limit_denominator(1000),
            options={"crf": str(crf), "preset": "veryfast", "threads": "1"},
        )
        stream.height, stream.width = frames_THWC[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for image in frames_THWC:
            container.mux(
                stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24"))
            )
        container.mux(stream.encode())
    return buffer.getvalue()
