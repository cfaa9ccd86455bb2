"""Pictures and videos whose pixels are changed, the same in every frame."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vlrl.types import Clip, Edited


@dataclass(frozen=True)
class Repainted(Edited):
    """`base` with its pixels changed by `repaint`; what is drawn for that is a function of `seed` and of what `base` is."""

    seed: str | int

    def load(self) -> Any:
        loaded = self.base.load()
        if isinstance(loaded, Clip):
            return Clip(self.repaint(loaded.frames_THWC), loaded.fps)
        return Image.fromarray(self.repaint(np.asarray(loaded.convert("RGB"))))

    def draw(self) -> np.random.Generator:
        """A generator that begins anew with each call."""
        return np.random.default_rng(zlib.crc32(f"{self.base.key}/{self.seed}".encode()))

    @abstractmethod
    def repaint(self, pixels: np.ndarray) -> np.ndarray:
        """Other pixels of the same shape, (H, W, 3) or (T, H, W, 3), uint8."""
