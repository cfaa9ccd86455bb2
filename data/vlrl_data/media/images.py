"""Pictures as `Media`: from PIL, bytes, a file, or a recipe. Each decodes when it is first needed, and is identified by its content.

Whatever a file holds (RGBA, palette, 16 bit, CMYK, rotated by EXIF, animated), `load` gives 8-bit RGB, upright, or raises `MediaError`
saying what is wrong and where. Video lives in `vlrl_data.video`; what a dataset's media columns may hold, in `vlrl_data.anymedia`.
"""

from __future__ import annotations

import hashlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from vlrl.types import Clip, Media, MediaError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"})
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")  # none that runs or fetches anything (EPS, PDF, ...)
DECODED = {"count": 0}  # pictures decoded by this process; read by the benchmark
_TRUNCATED = threading.Lock()


@dataclass(frozen=True)
class Limits:
    """What a picture may be. `max_pixels` is a guard against decompression bombs, not a budget; `truncated` accepts files that end too early."""

    max_bytes: int = 64 << 20
    max_pixels: int = 100_000_000
    min_side: int = 1
    max_aspect: float = 200.0
    truncated: bool = False


LIMITS = Limits()


def digest(*parts: bytes | str) -> str:
    """40 hex digits that identify the parts (sha256, truncated)."""
    mark = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        mark.update(len(data).to_bytes(8, "little"))
        mark.update(data)
    return mark.hexdigest()[:40]


@lru_cache(maxsize=1 << 16)
def _file_key(path: str, mtime_ns: int, size: int) -> str:
    return digest("bytes", Path(path).read_bytes())


def file_key(path: str) -> str:
    """Identity of a file's content; equal to that of the same bytes in memory. Raises MediaError if it cannot be read."""
    try:
        stat = Path(path).stat()
        return _file_key(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise MediaError(f"{path}: {error.strerror or error}") from None


@lru_cache(maxsize=1)
def formats() -> tuple[str, ...]:
    """The formats that are read, as far as this Pillow knows them."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _opened(source: str | bytes, limits: Limits) -> Iterator[Image.Image]:
    """The picture, its header read and within the limits. Whatever goes wrong inside becomes a MediaError."""
    place = f"picture of {len(source)} bytes" if isinstance(source, bytes) else source
    try:
        size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
        if not size:
            raise MediaError(f"{place}: the file is empty")
        if size > limits.max_bytes:
            raise MediaError(f"{place}: {size} bytes, over the limit of {limits.max_bytes} (max_bytes)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats()) as image:
                _check_size(image, limits, place)
                yield image
    except UnidentifiedImageError:
        raise MediaError(f"{place}: not a picture that can be read ({', '.join(formats())})") from None
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, Image.DecompressionBombError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"{place}: {error.strerror or error if isinstance(error, OSError) else error}") from None


def open_image(source: str | bytes, limits: Limits = LIMITS) -> Image.Image:
    """Decode a file (a path, or its bytes) to 8-bit RGB, upright. Raises MediaError."""
    with _opened(source, limits) as image:
        return _upright_rgb(image, limits)


def image_size(source: str | bytes, limits: Limits = LIMITS) -> tuple[int, int]:
    """Width and height as `open_image` would give them, from the header alone. Raises MediaError."""
    with _opened(source, limits) as image:
        if image.format == "TIFF":  # whether its header size is upright already depends on Pillow's version
            return _upright_rgb(image, limits).size
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
        return image.size[::-1] if turned else image.size  # type: ignore[return-value]


def _check_size(image: Image.Image, limits: Limits, place: str) -> None:
    width, height = image.size
    if width * height > limits.max_pixels:
        raise MediaError(f"{place}: {width} x {height} pixels, over the limit of {limits.max_pixels} (max_pixels)")
    if min(width, height) < limits.min_side:
        raise MediaError(f"{place}: {width} x {height} pixels, a side is under {limits.min_side} (min_side)")
    if max(width, height) / max(1, min(width, height)) > limits.max_aspect:
        raise MediaError(f"{place}: {width} x {height} pixels, longer than {limits.max_aspect}:1 (max_aspect)")


def _upright_rgb(image: Image.Image, limits: Limits) -> Image.Image:
    DECODED["count"] += 1
    if limits.truncated:
        with _TRUNCATED:  # the switch is global in Pillow
            ImageFile.LOAD_TRUNCATED_IMAGES = True
            try:
                image.load()
            finally:
                ImageFile.LOAD_TRUNCATED_IMAGES = False
    return rgb(ImageOps.exif_transpose(image) or image)


def rgb(image: Image.Image) -> Image.Image:
    """Any mode to 8-bit RGB: transparency over white, 16 and 32 bit scaled to the range of the data type (float: to its own range)."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
        values = np.asarray(image).astype(np.float64)
        low, high = (0.0, 65535.0) if image.mode != "F" else (float(values.min()), float(values.max()))
        scaled = (values - low) / ((high - low) or 1) * 255
        return Image.fromarray(scaled.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        top = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", top.size, "white"), top).convert("RGB")
    return image.convert("RGB")


class _ByKey:
    """Equality and hash by content key."""

    key: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class PilImage(_ByKey, Media):
    """A picture that is in memory already."""

    image: Image.Image
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        return digest("pil", self.image.mode, repr(self.image.size), self.image.tobytes())

    def load(self) -> Image.Image:
        return rgb(self.image)


@dataclass(frozen=True, eq=False)
class Picture(_ByKey, Media):
    """A picture file: a path, or its bytes."""

    source: str | bytes
    limits: Limits = LIMITS
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        return digest("bytes", self.source) if isinstance(self.source, bytes) else file_key(self.source)

    def load(self) -> Image.Image:
        return open_image(self.source, self.limits)

    def check(self) -> None:
        """Reads the header: exists, is a picture, within the limits."""
        with _opened(self.source, self.limits):
            pass


@dataclass(frozen=True, eq=False)
class Made(_ByKey, Media):
    """A picture drawn by `recipe(*args)`: a module-level function, a pure function of plain arguments (so it pickles)."""

    recipe: Callable[..., Image.Image | Clip]
    args: tuple[Any, ...] = ()
    kind: Literal["image", "video"] = "image"

    @cached_property
    def key(self) -> str:
        said = [arg.key if isinstance(arg, Media) else repr(arg) for arg in self.args]
        return digest("made", f"{self.recipe.__module__}.{self.recipe.__qualname__}", *said)

    def load(self) -> Image.Image | Clip:
        return self.recipe(*self.args)

    def check(self) -> None:
        for arg in self.args:
            if isinstance(arg, Media):
                arg.check()
