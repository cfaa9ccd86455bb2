"""Pictures and videos whose pixels are changed when they are loaded, in the same way in every frame."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vlrl.types import Clip, Edited, Sound


@dataclass(frozen=True)
class Repainted(Edited):
    """`base` with its pixels changed by `repaint`. Random draws are a function of `seed` and of the content
    of `base`."""

    seed: str | int

    def load(self) -> Any:
        loaded = self.base.load()
        if isinstance(loaded, Clip):
            return Clip(self.repaint(loaded.frames_THWC), loaded.fps)
        assert not isinstance(loaded, Sound), f"{self.base.key}: a sound has no pixels"
        return Image.fromarray(self.repaint(np.asarray(loaded.convert("RGB"))))

    def draw(self) -> np.random.Generator:
        """A random generator; every call returns it in its initial state."""
        return np.random.default_rng(zlib.crc32(f"{self.base.key}/{self.seed}".encode()))

    @abstractmethod
    def repaint(self, pixels: np.ndarray) -> np.ndarray:
        """The changed pixels, of the same shape, (H, W, 3) or (T, H, W, 3), uint8."""
