"""Images as `Media`: from PIL, bytes, a file, or a recipe. Each is decoded when it is first needed and
identified by its content.

Whatever a file holds (RGBA, palette, 16 bit, CMYK, rotated by EXIF, animated), `load` gives 8-bit RGB,
upright, or raises `MediaError` with the place and the fault.
"""

from __future__ import annotations

import hashlib
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

from vlrl.services.failures import of_the_machine
from vlrl.services.media_files import open_picture, picture_formats
from vlrl.types import Clip, Media, MediaError

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
)
DECODED = {"count": 0}  # images decoded by this process; read by the benchmark
_TRUNCATED_LOCK = threading.Lock()


@dataclass(frozen=True)
class ImageLimits:
    """Limits of an image file. `max_pixels` guards against decompression bombs and is no budget; `truncated`
    accepts files that end too early."""

    max_bytes: int = 64 << 20
    max_pixels: int = 100_000_000
    min_side: int = 1
    max_aspect: float = 200.0
    truncated: bool = False


LIMITS = ImageLimits()


def digest(*parts: bytes | str) -> str:
    """40 hex digits that identify the parts (sha256, truncated)."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()[:40]


@lru_cache(maxsize=1 << 16)
def _file_key(path: str, mtime_ns: int, size: int) -> str:
    return digest("bytes", Path(path).read_bytes())


def file_key(path: str) -> str:
    """Key of a file's content, equal to the key of the same bytes in memory. Raises MediaError if it cannot
    be read."""
    try:
        stat = Path(path).stat()
        return _file_key(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        if of_the_machine(error):
            raise
        raise MediaError(f"{shorten(path)}: {os_fault(error)}") from None


def os_fault(error: Exception) -> str:
    """The fault that an error of the operating system names, without its number and path."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def shorten(path: str) -> str:
    """A path for messages: whole up to 300 characters, else its start and its length."""
    return path if len(path) <= 300 else f"{path[:80]}... ({len(path)} characters)"


@contextmanager
def _opened(source: str | bytes, limits: ImageLimits) -> Iterator[Image.Image]:
    """The image, its header read and within the limits. Every error inside becomes a MediaError."""
    place = f"image of {len(source)} bytes" if isinstance(source, bytes) else shorten(source)
    try:
        size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
        if not size:
            raise MediaError(f"{place}: the file is empty")
        if size > limits.max_bytes:
            raise MediaError(f"{place}: {size} bytes, over the limit of {limits.max_bytes} (max_bytes)")
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", Image.DecompressionBombWarning
            )  # `_check_size` applies our own limit
            with open_picture(source) as image:
                _check_size(image, limits, place)
                yield image
    except UnidentifiedImageError:
        raise MediaError(f"{place}: not an image that can be read ({', '.join(picture_formats())})") from None
    except MediaError:
        raise
    except Exception as error:  # Pillow's decoders raise errors of many types on broken files
        if of_the_machine(error):  # no fault of the file
            raise
        raise MediaError(f"{place}: {os_fault(error)}") from None


def open_image(source: str | bytes, limits: ImageLimits = LIMITS) -> Image.Image:
    """Decode a file (a path, or its bytes) to 8-bit RGB, upright. Raises MediaError."""
    with _opened(source, limits) as image:
        return _upright_rgb(image, limits)


def image_size(source: str | bytes, limits: ImageLimits = LIMITS) -> tuple[int, int]:
    """Width and height of the image that `open_image` gives, from the header alone. Raises MediaError."""
    with _opened(source, limits) as image:
        if image.format == "TIFF":  # Pillow's versions differ in whether the header size is upright
            return _upright_rgb(image, limits).size
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
        return (image.height, image.width) if turned else image.size


def _check_size(image: Image.Image, limits: ImageLimits, place: str) -> None:
    width, height = image.size
    if width * height > limits.max_pixels:
        raise MediaError(
            f"{place}: {width} x {height} pixels, over the limit of {limits.max_pixels} (max_pixels)"
        )
    if min(width, height) < limits.min_side:
        raise MediaError(f"{place}: {width} x {height} pixels, a side is under {limits.min_side} (min_side)")
    if max(width, height) / max(1, min(width, height)) > limits.max_aspect:
        raise MediaError(
            f"{place}: {width} x {height} pixels, longer than {limits.max_aspect}:1 (max_aspect)"
        )


def _upright_rgb(image: Image.Image, limits: ImageLimits) -> Image.Image:
    DECODED["count"] += 1
    if limits.truncated:
        with _TRUNCATED_LOCK:  # the switch is global in Pillow
            ImageFile.LOAD_TRUNCATED_IMAGES = True
            try:
                image.load()
            finally:
                ImageFile.LOAD_TRUNCATED_IMAGES = False
    return rgb(ImageOps.exif_transpose(image) or image)


def rgb(image: Image.Image) -> Image.Image:
    """Any mode to 8-bit RGB: transparency over white, 16 bit scaled from 0-65535, float from 0-1, 32 bit and
    float beyond that from their own range. Raises MediaError for NaN and infinity, which are no pixels, and
    for a range in which single values hide all others."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
        values = np.asarray(image).astype(np.float64)
        if not np.isfinite(values).all():
            raise MediaError("it has pixels that are NaN or infinite")
        low, high = float(values.min()), float(values.max())
        most = 1.0 if image.mode == "F" else 65535.0
        if low >= 0 and high <= most:
            low, high = 0.0, most
        scaled = ((values - low) / ((high - low) or 1) * 255).clip(0, 255).round().astype(np.uint8)
        if high != most and len(np.unique(scaled)) <= 2 < len(np.unique(values)):
            raise MediaError(f"its pixels go from {low:g} to {high:g}, and few values hide all others")
        return Image.fromarray(scaled).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        top = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", top.size, "white"), top).convert("RGB")
    return image.convert("RGB")


class EqualByKey:
    """Media with equality and hash by content key."""

    key: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualByKey) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class InMemoryImage(EqualByKey, Media):
    """An image that is in memory."""

    image: Image.Image
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        return digest("pil", self.image.mode, repr(self.image.size), self.image.tobytes())

    def load(self) -> Image.Image:
        return rgb(self.image)


@dataclass(frozen=True, eq=False)
class StoredImage(EqualByKey, Media):
    """An image file: its path, or its bytes."""

    source: str | bytes
    limits: ImageLimits = LIMITS
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        return digest("bytes", self.source) if isinstance(self.source, bytes) else file_key(self.source)

    def load(self) -> Image.Image:
        return open_image(self.source, self.limits)

    def check(self) -> None:
        """Read the header: the file exists, is an image, and is within the limits."""
        with _opened(self.source, self.limits):
            pass


@dataclass(frozen=True, eq=False)
class GeneratedImage(EqualByKey, Media):
    """An image drawn by `recipe(*args)`, where `recipe` is a module-level pure function of plain arguments
    (so that it pickles).

    The key is made from the recipe's module and name and its arguments, and seeds the sampling of a prompt:
    renaming a recipe changes runs.
    """

    recipe: Callable[..., Image.Image | Clip]
    args: tuple[Any, ...] = ()
    kind: Literal["image", "video"] = "image"

    @cached_property
    def key(self) -> str:
        parts = [arg.key if isinstance(arg, Media) else repr(arg) for arg in self.args]
        return digest("made", f"{self.recipe.__module__}.{self.recipe.__qualname__}", *parts)

    def load(self) -> Image.Image | Clip:
        return self.recipe(*self.args)

    def check(self) -> None:
        for arg in self.args:
            if isinstance(arg, Media):
                arg.check()
