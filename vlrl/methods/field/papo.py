"""Log-probs of the same completion when the pictures are half blacked out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vlrl.methods._pixels import Repainted
from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import Media, Prompt, TokenBatch

if TYPE_CHECKING:
    from vlrl.run import Run


@dataclass(frozen=True)
class Blackened(Repainted):
    """`base` with each `patch` x `patch` square of pixels black with probability `share`; in a video the same squares in every frame."""

    patch: int
    share: float

    @property
    def key(self) -> str:
        return f"{self.base.key}/black{self.patch}-{self.share:g}-{self.seed}"

    def repaint(self, pixels: np.ndarray) -> np.ndarray:
        height, width = pixels.shape[-3:-1]
        squares = self.draw().random((-(-height // self.patch), -(-width // self.patch))) < self.share
        dark = squares.repeat(self.patch, 0).repeat(self.patch, 1)[:height, :width, None]
        return np.where(dark, 0, pixels).astype(np.uint8)


@register("blind_logp")
@dataclass(frozen=True, kw_only=True)
class BlindLogp(Field):
    """log pi(y_t | x with blackened pictures, y_<t), in nats: each patch of `patch` pixels of the original is black with probability `share`.

    Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, sec. 3.2; patch 14 and 0.6 are the released code's.  As in that code the masked log-probs are
    those of the policy at the start of the step, without gradient; the squares differ from step to step.
    Edge: a prompt without pictures gives the log-probs themselves.  Shapes: (B, T).
    """

    patch: int = 14
    share: float = 0.6
    at_start = True
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        seed = str(self.run.step if self.run is not None else 0)
        return policy.forward(replace(batch, prompts=[self.blind(prompt, seed) for prompt in batch.prompts]))["logp"]

    def blind(self, prompt: Prompt, seed: str) -> Prompt:
        """The prompt with all its pictures and videos blackened."""

        def black(media: tuple[Media, ...]) -> tuple[Media, ...]:
            return tuple(Blackened(medium, seed, self.patch, self.share) for medium in media)

        return replace(prompt, images=black(prompt.images), videos=black(prompt.videos), train=None)
