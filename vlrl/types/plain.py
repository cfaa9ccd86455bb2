"""Media and annotations as values that JSON has, and back: what a checkpoint keeps of batches that were
collected ahead."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.types.media import Clip, Media, MediaKind, Sound
from vlrl.types.rows import Row

if TYPE_CHECKING:
    from PIL.Image import Image

_MARK = "__tuple_or_map__"  # no key that an annotation has


@dataclass(frozen=True)
class StoredPixels(Media):
    """A picture, video or sound that an environment made, with its pixels (or samples) and the key that it
    had."""

    kind: MediaKind
    stored_key: str
    data: bytes

    @property
    def key(self) -> str:
        return self.stored_key

    def load(self) -> Image | Clip | Sound:
        import numpy as np

        with np.load(io.BytesIO(self.data), allow_pickle=False) as arrays:
            pixels, fps = arrays["pixels"], float(arrays["fps"])
        if self.kind == "video":
            return Clip(pixels, fps)
        if self.kind == "audio":
            return Sound(pixels, int(fps))
        from PIL import Image

        return Image.fromarray(pixels)


def media_to_plain(medium: Media, row: Row) -> Any:
    """The place of a medium of the row; else its pixels."""
    place = next((place for place, own in enumerate(row.media) if own is medium or own.key == medium.key), -1)
    if place >= 0:
        return place
    import numpy as np

    made, file = medium.load(), io.BytesIO()
    if isinstance(made, Sound):
        pixels, per_second = made.samples_T, float(made.rate)
    elif isinstance(made, Clip):
        pixels, per_second = made.frames_THWC, made.fps
    else:
        pixels, per_second = np.asarray(made.convert("RGB")), 0.0
    np.savez_compressed(file, pixels=pixels, fps=np.float64(per_second))
    return [medium.kind, medium.key, base64.b64encode(file.getvalue()).decode("ascii")]


def media_from_plain(value: Any, row: Row) -> Media:
    """Undo `media_to_plain`."""
    if isinstance(value, int):
        return row.media[value]
    kind, key, data = value
    return StoredPixels(kind, key, base64.b64decode(data))


def pack(value: Any) -> Any:
    """`value` with tuples, and maps whose keys are no texts, marked: JSON makes lists and texts of them."""
    if isinstance(value, tuple):
        return {_MARK: "tuple", "items": [pack(item) for item in value]}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: pack(item) for key, item in value.items()}
        return {_MARK: "map", "items": [[pack(key), pack(item)] for key, item in value.items()]}
    return value


def unpack(value: Any) -> Any:
    """Undo `pack`."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [unpack(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.get(_MARK) == "tuple":
        return tuple(unpack(item) for item in value["items"])
    if value.get(_MARK) == "map":
        return {unpack(key): unpack(item) for key, item in value["items"]}
    return {key: unpack(item) for key, item in value.items()}
