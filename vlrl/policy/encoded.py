"""A prompt as the model reads it: token ids, processed media, rotary positions.

Shape legend: L prompt tokens; A rotary axes (3 for M-RoPE families, absent for the others); H hidden size; N
tokens of one medium.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.types import CoordinateSpace, Media


@dataclass(frozen=True)
class Features:
    """The processor's output for one image, video or sound: its tower's inputs, and the placeholder text that
    stands for it in a prompt."""

    key: str
    kind: str  # "image" | "video" | "audio": what the model treats it as
    # the expanded placeholder: one token per vision embedding, and the separators or timestamps that a family
    # puts between them
    text: str
    tensors: dict[str, Tensor]  # under the processor's own names: pixel_values, image_grid_thw, ...
    space: CoordinateSpace | None  # None: a sound has no coordinates
    num_embeds: int  # how many tokens of `text` are replaced by vision embeddings

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


@dataclass(frozen=True)
class MediaEmbeds:
    """The vision tower's output for one medium: `embeds_NH`, one row per placeholder token, and the features
    of deeper layers (DeepStack)."""

    embeds_NH: Tensor
    deep: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt, ready for the model. `ids` hold everything up to the first completion token, the prompt's
    prefix included."""

    ids: list[int]
    features: tuple[
        Features, ...
    ]  # one per medium, in the order in which the prompt shows them (an image shown twice is listed twice)
    types: list[int]  # per token: 0 text, 1 image placeholder, 2 video's, 3 sound's
    positions: Tensor  # (A, L) or (L,): rotary positions of the prompt
    # rotary position (on every axis) of the first completion token; token i of a completion is at
    # next_position + i
    next_position: int
    spaces: tuple[CoordinateSpace, ...] = ()  # images first (in the order of Prompt.images), then videos
    media: tuple[Media, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)
