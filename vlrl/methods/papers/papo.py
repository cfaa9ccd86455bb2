"""Log-probs of the same completion when the pictures are half blacked out.

Be moved by the picture.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vlrl.functional import kl_estimate
from vlrl.methods.common.groups import top_share
from vlrl.methods.common.pixels import Repainted
from vlrl.registry import ConfigError, register
from vlrl.stages import AuxTensor, LossTerm
from vlrl.types import LossInputs, Media, PerToken, Prompt, TokenBatch

if TYPE_CHECKING:
    from vlrl.context import RunContext


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


@register("papo.masked_logp")
@dataclass(frozen=True, kw_only=True)
class PapoMaskedLogp(AuxTensor):
    """log pi(y_t | x with blackened pictures, y_<t), in nats: each patch of `patch` pixels of the original is black with probability `share`.

    Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, sec. 3.2; patch 14 and 0.6 are the released code's.  As in that code the masked log-probs are
    those of the policy at the start of the step, without gradient; the squares differ from step to step.
    Edge: a prompt without pictures gives the log-probs themselves.  Shapes: (B, T).
    """

    patch: int = 14
    share: float = 0.6
    at_start = True
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        seed = str(self.run.step if self.run is not None else 0)
        return policy.forward(replace(batch, prompts=[self.blind(prompt, seed) for prompt in batch.prompts]))["logp"]

    def blind(self, prompt: Prompt, seed: str) -> Prompt:
        """The prompt with all its pictures and videos blackened."""

        def black(media: tuple[Media, ...]) -> tuple[Media, ...]:
            return tuple(Blackened(medium, seed, self.patch, self.share) for medium in media)

        return replace(prompt, images=black(prompt.images), videos=black(prompt.videos), train=None)


@register("papo.masked_kl")
@dataclass(frozen=True, kw_only=True)
class PapoMaskedKl(LossTerm):
    """L = -KL(pi(. | picture) || pi(. | blackened picture)), estimated by k3 on the sampled tokens (nats): maximised.

    `limit` bounds the estimate from above (0: no), `share` below 1 keeps only a rollout's most picture-dependent tokens.
    Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, eq. 2 (gamma 0.01-0.02); log-ratios are held in +-20 and the estimate in +-10 as in the
    released code.
    The paper's double entropy loss is term `entropy` with a negative `coef` (0.03): of its two parts only the unmasked one has a gradient, there
    as here.
    """

    coef: float = 0.01
    limit: float = 0.0
    share: float = 1.0
    needs = ("papo.masked_logp",)

    def check(self, run: RunContext) -> None:
        if not run.family.sees:
            raise ConfigError(
                f"loss_terms: perception compares with blackened pictures, which policy {run.family.name!r} does not see; use a vision family"
            )

    def __call__(self, x: LossInputs) -> PerToken:
        kl_BT = kl_estimate(x.logp_BT, x["papo.masked_logp"], x.mask_BT, kind="k3", clamp_log=20.0, clamp_value=10.0)
        metrics = {"kl_perception": kl_BT.detach()}
        if self.share < 1:
            kl_BT = torch.where(top_share(kl_BT, x.mask_BT, x.group_B, self.share, "rollout"), kl_BT, 0.0)
        return PerToken(-(kl_BT.clamp(max=self.limit) if self.limit else kl_BT), metrics)
