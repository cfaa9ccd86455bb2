"""Pictures and videos of benchmark records, decoded when they are first needed and identified by their
content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from vlrl.services.media_files import open_picture, open_video
from vlrl.types import Clip, Media, MediaError


@dataclass(frozen=True, eq=False)
class SuitePicture(Media):
    """A picture: encoded bytes, a file, or a PIL image. `where` names its origin in error messages."""

    data: bytes | Path | Image.Image
    where: str = ""
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        if isinstance(self.data, Image.Image):
            return hashlib.sha256(
                repr((self.data.mode, self.data.size)).encode() + self.data.tobytes()
            ).hexdigest()[:40]
        return hashlib.sha256(
            self.data.read_bytes() if isinstance(self.data, Path) else self.data
        ).hexdigest()[:40]

    def load(self) -> Image.Image:
        """Decodes to RGB. Raises MediaError naming the picture's origin."""
        if isinstance(self.data, Image.Image):
            return self.data.convert("RGB")
        try:
            return open_picture(self.data).convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            origin = self.where or (
                str(self.data) if isinstance(self.data, Path) else f"{len(self.data)} encoded bytes"
            )
            raise MediaError(f"{origin}: not a picture that can be read ({error})") from None


@dataclass(frozen=True, eq=False)
class SuiteVideo(Media):
    """`frames` frames of a video file, uniformly from the first to the last (0: all)."""

    path: Path
    frames: int = 0
    kind: Literal["image", "video"] = field(default="video", init=False)

    @cached_property
    def key(self) -> str:
        digest = hashlib.sha256(repr(self.frames).encode())
        with self.path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()[:40]

    def load(self) -> Clip:
        """Decodes the chosen frames. Raises MediaError naming the file."""
        try:
            return _decode(self.path, self.frames)
        except (OSError, RuntimeError, ValueError) as error:
            raise MediaError(f"{self.path}: not a video that can be read ({error})") from None


def frame_numbers(total: int, count: int) -> list[int]:
    """The sampled frames: np.linspace(0, total - 1, count) truncated to integers, as in the harnesses; all if
    `count` is 0 or at least `total`."""
    return (
        list(range(total))
        if count <= 0 or total <= count
        else np.linspace(0, total - 1, count, dtype=int).tolist()
    )


def _decode(path: Path, count: int) -> Clip:
    with open_video(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        rate = float(stream.average_rate or 1)
        total = stream.frames or sum(1 for _ in container.decode(stream))
        if not stream.frames:
            container.seek(0)
        numbers = frame_numbers(total, count)
        keep, last = set(numbers), max(numbers, default=0)
        frames = {}
        for number, frame in enumerate(container.decode(stream)):
            if number in keep:
                frames[number] = frame.to_ndarray(format="rgb24")
            if number >= last:
                break
    if not frames:
        raise ValueError("it holds no frames")
    chosen = [frames[number] for number in numbers if number in frames]
    return Clip(np.stack(chosen), rate * len(chosen) / max(1, total))


def as_media(
    value: Any, folder: Path | None, kind: Literal["image", "video"], frames: int = 0
) -> list[Media]:
    """The media in a record's value: a picture, encoded bytes, {"bytes", "path"}, a path under `folder`, or a
    list of these; None gives none.

    Raises MediaError for a path that does not exist or is outside the folder.
    """
    if value is None or value == "":
        return []
    if isinstance(value, (list, tuple)):
        return [medium for item in value for medium in as_media(item, folder, kind, frames)]
    if isinstance(value, Image.Image) or (isinstance(value, bytes) and kind == "image"):
        return [SuitePicture(value)]
    if isinstance(value, Mapping):
        if value.get("bytes") is not None and kind == "image":
            return [SuitePicture(bytes(value["bytes"]), str(value.get("path") or ""))]
        value = value.get("path")
    if not isinstance(value, (str, Path)):
        raise MediaError(f"a {kind} must be bytes, a path or a picture, got {type(value).__name__}")
    path = _path_under(value, folder)
    return [SuitePicture(path, str(path)) if kind == "image" else SuiteVideo(path, frames)]


def _path_under(value: str | Path, folder: Path | None) -> Path:
    """The file of a relative path, which must be inside `folder`."""
    root = (folder or Path()).resolve()
    path = (root / value).resolve()
    if not path.is_relative_to(root):
        raise MediaError(f"{value}: outside the data folder {root}; media must be in it or in a folder of it")
    if not path.is_file():
        raise MediaError(
            f"{path}: no such file; put the suite's media under {root}, or give their folder with --media"
        )
    return path
