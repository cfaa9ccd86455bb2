"""Parses the value of a dataset column into `Media`, and writes media as JSON.

A value is a PIL image, bytes, base64, a data URI, a path, a file or http(s) URL, an array, a list of frame
files, or a mapping with one of these.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError
from vlrl.types import Clip, Media, MediaError, MediaKind, Sound
from vlrl_data.media.audio import InMemorySound, StoredSound, sound_of, wav_bytes
from vlrl_data.media.fetch import Web, fetch
from vlrl_data.media.images import (
    LIMITS,
    EqualByKey,
    ImageLimits,
    InMemoryImage,
    StoredImage,
    digest,
    shorten,
)
from vlrl_data.media.video import NATIVE, SAMPLED, Frames, StoredVideo, encode, frame_files

BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{64,}={0,2}\s*")  # the standard alphabet, or the URL-safe one
URL = re.compile(r"https?://", re.IGNORECASE)
MAX_COMPONENT = 255  # characters of a file name on common file systems
WEB = Web()


@dataclass(frozen=True)
class MediaSettings:
    """Where a dataset's media are, and what they may be.

    `roots` are tried in order for relative paths. `confined`: a path that leaves all roots (by "..", as an
    absolute path, or through a symlink) is refused before the file is opened.
    """

    roots: tuple[str, ...] = ()
    limits: ImageLimits = LIMITS
    frames: Frames = SAMPLED
    web: Web = WEB
    confined: bool = False

    def find(self, path: str) -> str:
        """The path to open: under the first root that has the file, else under the first root. Raises
        MediaError if it leaves the roots."""
        candidates = (
            [path] if os.path.isabs(path) else [str(Path(root) / path) for root in self.roots or (".",)]
        )
        found = next((candidate for candidate in candidates if os.path.exists(candidate)), candidates[0])
        self.check_inside(found, path)
        return found

    def check_inside(self, file: str, shown: str) -> None:
        """Raises MediaError if the media are confined and a file, its symlinks resolved, lies outside all
        roots."""
        if not self.confined:
            return
        roots = [os.path.realpath(root) for root in self.roots or (".",)]
        try:
            real = os.path.realpath(file)
            inside = any(os.path.commonpath([real, root]) == root for root in roots)
        except (OSError, ValueError) as error:
            raise MediaError(f"{shorten(shown)!r}: not a path: {error}") from None
        if not inside:
            raise MediaError(f"{shorten(shown)}: path leaves media_root ({', '.join(self.roots or ('.',))})")


@dataclass(frozen=True, eq=False)
class RemoteMedia(EqualByKey, Media):
    """An image, video or sound behind a URL, fetched when it is first needed. Its key is made from the URL:
    it needs no network."""

    url: str
    settings: MediaSettings
    kind: MediaKind = "image"
    options: tuple[Frames, tuple[float | None, float | None]] = field(default=(SAMPLED, (None, None)))

    @cached_property
    def key(self) -> str:
        return digest("url", self.url, self.kind, repr(self.options))

    def load(self) -> Image.Image | Clip | Sound:
        file = str(fetch(self.url, self.settings.web))
        try:
            if self.kind == "audio":
                return StoredSound(file).load()
            return (
                StoredImage(file, self.settings.limits)
                if self.kind == "image"
                else StoredVideo(file, *self.options)
            ).load()
        except MediaError as error:
            raise MediaError(f"{self.url}: {error}") from None


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=False)
    except ValueError as error:  # binascii.Error is one; text outside ASCII raises another
        raise MediaError(f"broken base64 ({len(text)} characters): {error}") from None


def _from_text(value: str, settings: MediaSettings) -> str | bytes:
    """A string as bytes (data URI, base64), a URL, or a path."""
    if value.startswith("data:"):
        head, comma, body = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise MediaError(f"a data URI without base64 content: {value[:40]!r}")
        return _from_base64(body)
    if value.startswith("file://"):
        return settings.find(unquote(value.removeprefix("file://")))
    if URL.match(value):
        return value
    if len(value) > MAX_COMPONENT and BASE64.fullmatch(value) and not _is_existing_path(value, settings):
        return _from_base64(value)
    if not value.strip():
        raise MediaError("an empty path")
    return settings.find(value)


def _is_existing_path(value: str, settings: MediaSettings) -> bool:
    """Whether a long string that could be base64 is the path of a file or folder."""
    if any(len(part) > MAX_COMPONENT for part in value.split("/")):
        return False
    return any(os.path.exists(os.path.join(root, value)) for root in settings.roots or (".",))


def parse_image(value: Any, settings: MediaSettings) -> Media:
    """A column's value as an image. Raises MediaError for a value that cannot be one."""
    if isinstance(value, Media):
        return value
    if isinstance(value, Image.Image):
        return InMemoryImage(value)
    if isinstance(value, (bytes, bytearray)):
        return StoredImage(bytes(value), settings.limits)
    if isinstance(value, np.ndarray):
        return InMemoryImage(_from_array(value))
    if isinstance(value, str):
        source = _from_text(value, settings)
        return (
            RemoteMedia(source, settings)
            if isinstance(source, str) and URL.match(source)
            else StoredImage(source, settings.limits)
        )
    if isinstance(value, Mapping):
        content = next(
            (
                value[key]
                for key in ("bytes", "path", "image", "image_url", "url")
                if value.get(key) is not None
            ),
            None,
        )
        if isinstance(content, str) and value.get("bytes") is not None:
            return StoredImage(_from_base64(content), settings.limits)
        if content is not None:
            return parse_image(content, settings)
    raise MediaError(
        f"{_describe(value)} is not an image (known: PIL, bytes, base64, data URI, path, file URI, "
        f"http(s), array, {{bytes, path}})"
    )


def parse_video(
    value: Any,
    settings: MediaSettings,
    span: tuple[float | None, float | None] = (None, None),
    frames: Frames | None = None,
    rate: float = 0.0,
) -> Media:
    """A column's value as a video: a file, a folder of frames, a list of frame files, bytes, or a mapping
    with any of these. Raises MediaError."""
    frames = frames or settings.frames
    if isinstance(value, Media):
        return value
    if isinstance(value, (bytes, bytearray)):
        return StoredVideo(bytes(value), frames, span)
    if isinstance(value, str):
        source = _from_text(value, settings)
        if isinstance(source, str) and URL.match(source):
            return RemoteMedia(source, settings, "video", (frames, span))
        if isinstance(source, str) and os.path.isdir(source):
            files = frame_files(source)
            for file in files:
                settings.check_inside(file, file)
            return StoredVideo(files, frames, span, rate or frames.fps or 2.0, settings.limits)
        return StoredVideo(source, frames, span)
    if isinstance(value, Sequence) and value and all(isinstance(item, str) for item in value):
        files = tuple(str(_from_text(item, settings)) for item in value)
        return StoredVideo(files, frames, span, rate or frames.fps or 2.0, settings.limits)
    if isinstance(value, Mapping):
        return _video_of_mapping(value, settings, frames)
    raise MediaError(
        f"{_describe(value)} is not a video (known: path, folder of frames, list of frame files, bytes, "
        f"{{bytes, path, frames}})"
    )


def _video_of_mapping(value: Mapping[str, Any], settings: MediaSettings, frames: Frames) -> Media:
    """Keys as in qwen-vl-utils: video_start and video_end in seconds, fps, min_frames, max_frames; `rate` for
    frame folders."""
    names = {
        "fps": "fps",
        "min_frames": "min_frames",
        "max_frames": "max_frames",
        "max_pixels": "frame_pixels",
        "total_pixels": "total_pixels",
    }
    changes: dict[str, Any] = {names[key]: _number(value, key) for key in names if value.get(key) is not None}
    try:
        own = replace(frames, **changes)
    except ConfigError as error:
        raise MediaError(f"a video entry: {error}") from None
    start, end, rate = (
        next((_number(value, key) for key in keys if value.get(key) is not None), None)
        for keys in (("video_start", "start"), ("video_end", "end"), ("rate", "sample_fps"))
    )
    content = next(
        (value[key] for key in ("bytes", "path", "video", "frames", "url") if value.get(key) is not None),
        None,
    )
    if content is None:
        raise MediaError(f"a video entry without bytes, path, video, frames or url: {sorted(value)}")
    if isinstance(content, str) and value.get("bytes") is not None:
        content = _from_base64(content)
    return parse_video(content, settings, (start, end), own, float(rate or 0))


def parse_audio(value: Any, settings: MediaSettings) -> Media:
    """A column's value as a sound: a file, bytes, samples with their rate ({array, sampling_rate}, as
    `datasets` has them), or a mapping with any of these. Raises MediaError."""
    if isinstance(value, Media):
        return value
    if isinstance(value, Sound):
        return InMemorySound(value)
    if isinstance(value, (bytes, bytearray)):
        return StoredSound(bytes(value))
    if isinstance(value, str):
        source = _from_text(value, settings)
        remote = isinstance(source, str) and URL.match(source)
        return RemoteMedia(str(source), settings, "audio") if remote else StoredSound(source)
    if isinstance(value, Mapping):
        if value.get("array") is not None:
            return InMemorySound(sound_of(value["array"], value.get("sampling_rate")))
        keys = ("bytes", "path", "audio", "audio_url", "url")
        content = next((value[key] for key in keys if value.get(key) is not None), None)
        if isinstance(content, str) and value.get("bytes") is not None:
            return StoredSound(_from_base64(content))
        if content is not None:
            return parse_audio(content, settings)
    raise MediaError(
        f"{_describe(value)} is not a sound (known: bytes, base64, data URI, path, file URI, http(s), "
        "{array, sampling_rate}, {bytes, path}; an array alone has no rate)"
    )


_WHOLE = ("min_frames", "max_frames", "max_pixels", "total_pixels")


def _number(value: Mapping[str, Any], key: str) -> float | int:
    """A number of a video entry: finite, at least 0, whole for counts. Raises MediaError."""
    found = value[key]
    plain = isinstance(found, (int, float, np.integer, np.floating)) and not isinstance(found, bool)
    if not plain or not math.isfinite(found) or found < 0 or (key in _WHOLE and found % 1):
        times = key in ("video_start", "start", "video_end", "end")
        kind = "a whole number" if key in _WHOLE else "seconds" if times else "a number"
        raise MediaError(f"a video entry whose {key} is {str(found)[:40]!r}; give {kind} from 0 on")
    return int(found) if key in _WHOLE else float(found)


def _from_array(value: np.ndarray) -> Image.Image:
    if (
        value.dtype != np.uint8
        or value.ndim not in (2, 3)
        or 0 in value.shape
        or (value.ndim == 3 and value.shape[2] not in (3, 4))
    ):
        raise MediaError(
            f"an array of shape {value.shape} and type {value.dtype} is not an image; give uint8 of (H, "
            "W), (H, W, 3) or (H, W, 4)"
        )
    return Image.fromarray(value)


def _describe(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"


def to_json(medium: Media) -> Any:
    """A medium as JSON: a path or URL, or its bytes in base64. The inverse of `parse_image`, `parse_video`
    and `parse_audio` (given the same settings)."""
    if isinstance(medium, RemoteMedia):
        return (
            {"url": medium.url, **_span_and_frames(*medium.options)} if medium.kind == "video" else medium.url
        )
    if isinstance(medium, StoredVideo):
        content = (
            {"frames": list(medium.source), "rate": medium.rate}
            if isinstance(medium.source, tuple)
            else _content(medium.source)
        )
        return content | _span_and_frames(medium.frames, medium.span)
    if isinstance(medium, StoredImage):
        return medium.source if isinstance(medium.source, str) else _content(medium.source)
    if isinstance(medium, StoredSound):
        return _content(medium.source)
    loaded = medium.load()
    if isinstance(loaded, Sound):
        return _content(wav_bytes(loaded))
    if isinstance(loaded, Clip):
        return _content(encode(loaded.frames_THWC, loaded.fps)) | _span_and_frames(NATIVE, (None, None))
    buffer = io.BytesIO()
    loaded.save(buffer, "PNG")
    return _content(buffer.getvalue())


def _content(source: str | bytes) -> dict[str, Any]:
    return {"path": source} if isinstance(source, str) else {"bytes": base64.b64encode(source).decode()}


def _span_and_frames(frames: Frames, span: tuple[float | None, float | None]) -> dict[str, Any]:
    values = {
        "fps": frames.fps,
        "min_frames": frames.min_frames,
        "max_frames": frames.max_frames,
        "start": span[0],
        "end": span[1],
    }
    values |= {"max_pixels": frames.frame_pixels, "total_pixels": frames.total_pixels}
    return {key: value for key, value in values.items() if value is not None}
