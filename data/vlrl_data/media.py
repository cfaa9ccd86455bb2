"""Pictures as `Media`: from PIL, bytes, a file, or a recipe. Each decodes when it is first needed, and is identified by its content.

Video lives in `vlrl_data.video`; reading any of a dataset's media columns in `vlrl_data.anymedia`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from vlrl.types import Clip, Media


def digest(*parts: bytes | str) -> str:
    """40 hex digits that identify the parts (sha256, truncated)."""
    mark = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        mark.update(len(data).to_bytes(8, "little"))
        mark.update(data)
    return mark.hexdigest()[:40]


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
        return self.image if self.image.mode == "RGB" else self.image.convert("RGB")


@dataclass(frozen=True, eq=False)
class Made(_ByKey, Media):
    """A picture or clip drawn by `recipe(*args)`: a module-level function, a pure function of plain arguments (so it pickles)."""

    recipe: Callable[..., Image.Image | Clip]
    args: tuple[Any, ...] = ()
    kind: Literal["image", "video"] = "image"

    @cached_property
    def key(self) -> str:
        return digest("made", f"{self.recipe.__module__}.{self.recipe.__qualname__}", repr(self.args))

    def load(self) -> Image.Image | Clip:
        return self.recipe(*self.args)


@lru_cache(maxsize=1 << 16)
def _file_key(path: str, mtime_ns: int, size: int) -> str:
    return digest("bytes", Path(path).read_bytes())
