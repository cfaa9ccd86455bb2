"""What a prompt becomes: token ids, processed media, rotary positions.

Shape legend: L prompt tokens; A rotary axes (3 for M-RoPE families, absent for the others); H hidden size; N tokens of one medium.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.types import CoordinateSpace, Media

V = TypeVar("V")


@dataclass(frozen=True)
class Features:
    """One picture or video, processed: what the vision tower reads, and the tokens that stand for it in a prompt."""

    key: str
    kind: str  # "image" | "video": what the model takes it for
    text: str  # the placeholder written out: slots for vision embeddings, and the separators or timestamps a family puts between them
    tensors: dict[str, Tensor]  # the processor's own names: pixel_values, image_grid_thw, ...
    space: CoordinateSpace
    slots: int  # how many tokens of `text` are replaced by vision embeddings

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


@dataclass(frozen=True)
class Seen:
    """A medium after the vision tower: `embeds_NH`, one row per placeholder token, and the deeper layers' features that some families add."""

    embeds_NH: Tensor
    deep: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Encoded:
    """A prompt, ready for the model. `ids` hold everything up to the first completion token, the prompt's prefix included."""

    ids: list[int]
    features: tuple[Features, ...]  # one per medium, in the order in which the prompt shows them (a picture shown twice is there twice)
    types: list[int]  # per token: 0 text, 1 image placeholder, 2 video placeholder
    positions: Tensor  # (A, L) or (L,): rotary positions of the prompt
    next_position: int  # rotary position (on every axis) of the first completion token; token i of a completion is at next_position + i
    spaces: tuple[CoordinateSpace, ...] = ()  # pictures first (in the order of Prompt.images), then videos
    media: tuple[Media, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class LRU(Generic[V]):
    """The least recently used values go first when `size` (by `weigh`) is exceeded; the newest always stays."""

    size: int
    weigh: Callable[[V], int] = lambda value: 1
    used: int = field(default=0, init=False)
    items: OrderedDict[str, V] = field(default_factory=OrderedDict, init=False)

    def get(self, key: str, make: Callable[[], V]) -> V:
        """The value under `key`, made if it is not there."""
        if key in self.items:
            self.items.move_to_end(key)
            return self.items[key]
        value = self.items[key] = make()
        self.used += self.weigh(value)
        while self.used > self.size and len(self.items) > 1:
            _, old = self.items.popitem(last=False)
            self.used -= self.weigh(old)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self.items.clear()
        self.used = 0
