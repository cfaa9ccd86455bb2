"""Whatever a dataset column holds (PIL, bytes, base64, data URI, path, file URI, http(s), array, a list of frames) as `Media`."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
from PIL import Image

from vlrl.types import Clip, Media, MediaError
from vlrl_data.fetch import Web, fetch
from vlrl_data.media import LIMITS, Limits, Picture, PilImage, _ByKey, digest
from vlrl_data.video import SAMPLED, Frames, Video, frame_files

BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
WEB = Web()


@dataclass(frozen=True)
class Place:
    """Where a dataset's media are, and what they may be. `roots` are tried in order for relative paths."""

    roots: tuple[str, ...] = ()
    limits: Limits = LIMITS
    frames: Frames = SAMPLED
    web: Web = WEB

    def find(self, path: str) -> str:
        """A path as it is to be opened: under the first root that has it (under the first one, if none has)."""
        if Path(path).is_absolute():
            return path
        places = [Path(root) / path for root in self.roots or (".",)]
        return str(next((place for place in places if place.exists()), places[0]))


@dataclass(frozen=True, eq=False)
class Remote(_ByKey, Media):
    """A picture or video behind a URL, fetched when it is first needed. Its identity is the URL, so that asking for it needs no network."""

    url: str
    place: Place
    kind: Literal["image", "video"] = "image"
    options: tuple[Frames, tuple[float | None, float | None]] = field(default=(SAMPLED, (None, None)))

    @cached_property
    def key(self) -> str:
        return digest("url", self.url, self.kind, repr(self.options))

    def load(self) -> Image.Image | Clip:
        file = str(fetch(self.url, self.place.web))
        try:
            return (Picture(file, self.place.limits) if self.kind == "image" else Video(file, *self.options)).load()
        except MediaError as error:
            raise MediaError(f"{self.url}: {error}") from None


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except ValueError as error:  # binascii.Error is one; text outside ASCII raises another
        raise MediaError(f"broken base64 ({len(text)} characters): {error}") from None


def _text(value: str, place: Place) -> str | bytes:
    """A string as bytes (data URI, base64), a URL, or a path."""
    if value.startswith("data:"):
        head, comma, body = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise MediaError(f"a data URI without base64 content: {value[:40]!r}")
        return _from_base64(body)
    if value.startswith("file://"):
        return place.find(unquote(value.removeprefix("file://")))
    if re.match(r"https?://", value, re.IGNORECASE):
        return value
    if len(value) > 255 and BASE64.fullmatch(value):
        return _from_base64(value)
    if not value.strip():
        raise MediaError("an empty path")
    return place.find(value)


def image(value: Any, place: Place) -> Media:
    """A column's value as a picture. Raises MediaError for what cannot be one."""
    if isinstance(value, Media):
        return value
    if isinstance(value, Image.Image):
        return PilImage(value)
    if isinstance(value, (bytes, bytearray)):
        return Picture(bytes(value), place.limits)
    if isinstance(value, np.ndarray):
        return PilImage(_from_array(value))
    if isinstance(value, str):
        source = _text(value, place)
        is_url = isinstance(source, str) and re.match(r"https?://", source, re.IGNORECASE)
        return Remote(str(source), place) if is_url else Picture(source, place.limits)
    if isinstance(value, Mapping):
        content = next((value[key] for key in ("bytes", "path", "image", "image_url", "url") if value.get(key) is not None), None)
        if isinstance(content, str) and value.get("bytes") is not None:
            return Picture(_from_base64(content), place.limits)
        if content is not None:
            return image(content, place)
    raise MediaError(f"{_say(value)} is not a picture (known: PIL, bytes, base64, data URI, path, file URI, http(s), array, {{bytes, path}})")


def video(value: Any, place: Place, span: tuple[float | None, float | None] = (None, None), frames: Frames | None = None, rate: float = 0.0) -> Media:
    """A column's value as a video: a file, a folder of frames, a list of frame files, bytes, or a mapping with any of these. Raises MediaError."""
    frames = frames or place.frames
    if isinstance(value, Media):
        return value
    if isinstance(value, (bytes, bytearray)):
        return Video(bytes(value), frames, span)
    if isinstance(value, str):
        source = _text(value, place)
        if isinstance(source, str) and re.match(r"https?://", source, re.IGNORECASE):
            return Remote(source, place, "video", (frames, span))
        if isinstance(source, str) and Path(source).is_dir():
            return Video(frame_files(source), frames, span, rate or frames.fps or 2.0, place.limits)
        return Video(source, frames, span)
    if isinstance(value, Sequence) and value and all(isinstance(item, str) for item in value):
        files = tuple(str(_text(item, place)) for item in value)
        return Video(files, frames, span, rate or frames.fps or 2.0, place.limits)
    if isinstance(value, Mapping):
        return _video_of_mapping(value, place, frames)
    raise MediaError(f"{_say(value)} is not a video (known: path, folder of frames, list of frame files, bytes, {{bytes, path, frames}})")


def _video_of_mapping(value: Mapping[str, Any], place: Place, frames: Frames) -> Media:
    """Keys as in qwen-vl-utils: video_start and video_end in seconds, fps, min_frames, max_frames; `rate` for frame folders."""
    names = {"fps": "fps", "min_frames": "min_frames", "max_frames": "max_frames", "max_pixels": "frame_pixels", "total_pixels": "total_pixels"}
    changes = {names[key]: value[key] for key in names if value.get(key) is not None}
    own = Frames(**({name: getattr(frames, name) for name in Frames.__dataclass_fields__} | changes))
    span = (value.get("video_start", value.get("start")), value.get("video_end", value.get("end")))
    content = next((value[key] for key in ("bytes", "path", "video", "frames", "url") if value.get(key) is not None), None)
    if content is None:
        raise MediaError(f"a video entry without bytes, path, video, frames or url: {sorted(value)}")
    if isinstance(content, str) and value.get("bytes") is not None:
        content = _from_base64(content)
    return video(content, place, span, own, float(value.get("rate") or value.get("sample_fps") or 0))


def _from_array(value: np.ndarray) -> Image.Image:
    if value.dtype != np.uint8 or value.ndim not in (2, 3) or 0 in value.shape or (value.ndim == 3 and value.shape[2] not in (3, 4)):
        raise MediaError(f"an array of shape {value.shape} and type {value.dtype} is not a picture; give uint8 of (H, W), (H, W, 3) or (H, W, 4)")
    return Image.fromarray(value)


def _say(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"


def plain(medium: Media) -> Any:
    """A medium as JSON: a path or URL, or its bytes in base64. The inverse of `image` and `video` (given the same place)."""
    if isinstance(medium, Remote):
        return {"url": medium.url, **_span_and_frames(*medium.options)} if medium.kind == "video" else medium.url
    if isinstance(medium, Video):
        content = {"frames": list(medium.source), "rate": medium.rate} if isinstance(medium.source, tuple) else _content(medium.source)
        return content | _span_and_frames(medium.frames, medium.span)
    if isinstance(medium, Picture):
        return medium.source if isinstance(medium.source, str) else _content(medium.source)
    loaded = medium.load()
    if isinstance(loaded, Clip):
        from vlrl_data.video import NATIVE, encode

        return _content(encode(loaded.frames_THWC, loaded.fps)) | _span_and_frames(NATIVE, (None, None))
    buffer = io.BytesIO()
    loaded.save(buffer, "PNG")
    return _content(buffer.getvalue())


def _content(source: str | bytes) -> dict[str, Any]:
    return {"path": source} if isinstance(source, str) else {"bytes": base64.b64encode(source).decode()}


def _span_and_frames(frames: Frames, span: tuple[float | None, float | None]) -> dict[str, Any]:
    values = {"fps": frames.fps, "min_frames": frames.min_frames, "max_frames": frames.max_frames, "start": span[0], "end": span[1]}
    values |= {"max_pixels": frames.frame_pixels, "total_pixels": frames.total_pixels}
    return {key: value for key, value in values.items() if value is not None}
