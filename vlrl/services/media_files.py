"""The one place where pictures, videos and sounds of foreign origin are opened.

A library left to its defaults guesses the format from the content and from the name, and some formats run a
program (EPS: Ghostscript) or open other files and addresses (playlists, SDP, concat scripts, MPEG-DASH).
Here a picture is one of `PICTURES`, a video one of the containers that `container_of` knows by its first
bytes, a sound one that `sound_format` knows; ffmpeg gets the bytes and the name of the format, and neither
a path nor a choice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

PICTURES = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")  # none runs or fetches anything
HEAD = 1024  # bytes of a video that are looked at
ISO_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp")
STARTS = {  # first bytes of a container -> ffmpeg's name of the format
    b"\x1aE\xdf\xa3": "matroska",
    b"FLV\x01": "flv",
    b"\x00\x00\x01\xba": "mpeg",
    b"\x00\x00\x01\xb3": "mpegvideo",
    b"OggS": "ogg",
    b"0&\xb2u\x8ef\xcf\x11": "asf",
    b"GIF8": "gif",
}
CONTAINERS = "mp4, mov, mkv, webm, avi, mpeg, mpeg-ts, flv, ogg, asf, gif"
SOUNDS = "wav, flac, mp3, aac, ogg, opus, m4a, webm"


@lru_cache(maxsize=1)
def picture_formats() -> tuple[str, ...]:
    """The formats of `PICTURES` that the installed Pillow reads."""
    from PIL import Image

    Image.init()
    return tuple(name for name in PICTURES if name in Image.OPEN)


def open_picture(source: str | Path | bytes) -> Image.Image:
    """A picture file (a path, or its bytes), its header read and its pixels not yet. Raises
    PIL.UnidentifiedImageError for what is none of `PICTURES`, and what Pillow raises."""
    from PIL import Image

    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=picture_formats())


def container_of(head: bytes) -> str:
    """ffmpeg's name of a video container, from its first `HEAD` bytes; "" for what is none that is read."""
    if head[4:8] in ISO_BOXES:
        return "mov"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    if head[:1] == b"G" and head[188:189] == b"G" and head[376:377] in (b"G", b""):
        return "mpegts"
    return next((name for start, name in STARTS.items() if head.startswith(start)), "")


def check_container(source: str | Path | bytes) -> str:
    """`container_of` of a video file. Raises ValueError for what is no container, and OSError."""
    head = head_of(source)
    if not (name := container_of(head)):
        raise ValueError(f"not a video container that is read ({CONTAINERS}): it begins with {head[:16]!r}")
    return name


def sound_format(head: bytes) -> str:
    """ffmpeg's name of a sound file's format, from its first bytes; "" for what is none that is read."""
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] in (b"\xfb", b"\xf3", b"\xf2", b"\xfa")):
        return "mp3"
    if head[:1] == b"\xff" and head[1:2] in (b"\xf1", b"\xf9"):
        return "aac"
    return found if (found := container_of(head)) in ("ogg", "mov", "matroska") else ""


def head_of(source: str | Path | bytes) -> bytes:
    """The first `HEAD` bytes of a file (a path, or its bytes). Raises OSError."""
    if isinstance(source, bytes):
        return source[:HEAD]
    with Path(source).open("rb") as file:
        return file.read(HEAD)


def check_sound(source: str | Path | bytes) -> str:
    """`sound_format` of a file. Raises ValueError for what is none that is read, and OSError."""
    head = head_of(source)
    if not (name := sound_format(head)):
        raise ValueError(f"not a sound file that is read ({SOUNDS}): it begins with {head[:16]!r}")
    return name


def open_video(source: str | Path | bytes) -> AbstractContextManager[Any]:
    """PyAV's container of a video file (a path, or its bytes). Raises ValueError for what is no container,
    OSError, and what PyAV raises."""
    return _opened(source, check_container(source))


def open_sound(source: str | Path | bytes) -> AbstractContextManager[Any]:
    """PyAV's container of a sound file (a path, or its bytes). Raises ValueError for what is none that is
    read, OSError, and what PyAV raises."""
    return _opened(source, check_sound(source))


@contextmanager
def _opened(source: str | Path | bytes, name: str) -> Iterator[Any]:
    import av

    with (
        io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as stream,
        av.open(stream, format=name) as container,
    ):
        yield container
