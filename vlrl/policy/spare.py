"""A blank picture: what a rank without media sends through the vision tower when other ranks use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlrl.types import Media


@dataclass(frozen=True)
class Blank(Media):
    """A small grey picture."""

    side: int = 56
    kind = "image"

    @property
    def key(self) -> str:
        return f"blank-{self.side}"

    def load(self) -> Any:
        from PIL import Image

        return Image.new("RGB", (self.side, self.side), (128, 128, 128))


BLANKS = (Blank(),)
