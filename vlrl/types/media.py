"""Pictures, videos and sounds, and what their coordinates mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image as PILImage

TARGET_UNITS = "target_units"  # the key of `Row.meta` that says in which units a demonstration's boxes are


class MediaError(ValueError):
    """A picture, video or sound that is missing, broken or refused."""


@dataclass(frozen=True)
class Clip:
    """A decoded video. `frames_THWC` is uint8 RGB; `fps` is frames per second *of these frames* (after any
    subsampling)."""

    frames_THWC: np.ndarray
    fps: float

    def __len__(self) -> int:
        return len(self.frames_THWC)


@dataclass(frozen=True)
class Sound:
    """A decoded sound. `samples_T` is one channel, float32 from -1 to 1; `rate` is samples per second."""

    samples_T: np.ndarray
    rate: int

    def __len__(self) -> int:
        return len(self.samples_T)

    @property
    def seconds(self) -> float:
        return len(self.samples_T) / self.rate


MediaKind = Literal["image", "video", "audio"]


class Media(ABC):
    """A picture, a video or a sound that is decoded when it is first needed. Two media with equal keys have
    the same content."""

    kind: MediaKind

    @property
    @abstractmethod
    def key(self) -> str:
        """Identity of the content: a run decodes, processes and encodes each key once per step."""

    @abstractmethod
    def load(self) -> PILImage.Image | Clip | Sound:
        """Decode. Raises `MediaError` with the place it came from when it cannot be."""

    def check(self) -> None:
        """A cheap look before training (does the file exist?). Raises `MediaError`."""


@dataclass(frozen=True)
class Edited(Media):
    """`base` with something done to it; a subclass says what, in `key` and `load`."""

    base: Media

    @property
    def kind(self) -> MediaKind:  # type: ignore[override]  # a class attribute elsewhere
        return self.base.kind


@dataclass(frozen=True)
class CoordinateSpace:
    """What one picture's coordinates mean to the policy, and how to get back to original pixels.

    `original` and `seen` are (width, height) before and after the processor's resize. `units`: "seen" (pixels
    after resizing), "original" (pixels before), "unit" (0-1) or "per_mille" (0-1000).
    """

    original: tuple[int, int]
    seen: tuple[int, int]
    units: Literal["seen", "original", "unit", "per_mille"] = "seen"

    @property
    def scale(self) -> tuple[float, float]:
        """Multiply the policy's (x, y) by this to get original pixels."""
        (width, height), (seen_w, seen_h) = self.original, self.seen
        unit = (float(width), float(height))
        table = {
            "seen": (width / seen_w, height / seen_h),
            "original": (1.0, 1.0),
            "unit": unit,
            "per_mille": (width / 1000, height / 1000),
        }
        return table[self.units]

    def to_original(self, xy: Sequence[float]) -> tuple[float, ...]:
        """(x, y, x, y, ...) in the policy's units -> original pixels."""
        return tuple(value * self.scale[i % 2] for i, value in enumerate(xy))

    def from_original(self, xy: Sequence[float]) -> tuple[float, ...]:
        """(x, y, x, y, ...) in original pixels -> the policy's units."""
        return tuple(value / self.scale[i % 2] for i, value in enumerate(xy))


# key of a row's meta: "original" where its demonstrations hold coordinates in pixels of the original picture
