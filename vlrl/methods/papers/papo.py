"""PAPO: perception-aware policy optimization, a KL between the policy with the image and the policy with a
masked image, which is maximised.

    papo.masked_logp   aux tensor: log-probs of the same completion with masked images
    papo.masked_kl     loss term: the negative KL

The release's double entropy loss is the loss term `nll` with `coef` 0.03: it estimates an entropy by the mean
of -log pi of the sampled tokens, and of its two parts only the unmasked one has a gradient, there as here.

Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, sec. 3.2 and eq. 2, with released code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vlrl.functional import kl_estimate
from vlrl.methods.common.groups import top_share
from vlrl.methods.common.pixels import Repainted
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AuxTensor, LossTerm
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, Media, Prompt, TokenBatch, UnreducedLoss


@dataclass(frozen=True)
class Blackened(Repainted):
    """`base` with each `patch` x `patch` square of pixels black with probability `share`; in a video the same
    squares in every frame."""

    patch: int
    share: float

    @property
    def key(self) -> str:
        return f"{self.base.key}/black{self.patch}-{self.share:g}-{self.seed}"

    def repaint(self, pixels: np.ndarray) -> np.ndarray:
        height, width = pixels.shape[-3:-1]
        squares = self.draw().random((-(-height // self.patch), -(-width // self.patch))) < self.share
        black = squares.repeat(self.patch, 0).repeat(self.patch, 1)[:height, :width, None]
        return np.where(black, 0, pixels).astype(np.uint8)


@register("papo.masked_logp")
@dataclass(frozen=True, kw_only=True)
class PapoMaskedLogp(AuxTensor):
    """Masked-image log-probs: log pi(y_t | x with masked images, y_<t), in nats.

    Each patch of `patch` pixels of the original image is black with probability `share`. The log-probs are
    those of the policy at the start of the step, without gradient, as in the released code; the squares
    differ from step to step.
    Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, sec. 3.2; patch 14 and share 0.6 are the released
    code's.
    Edge: a prompt without images gives the log-probs themselves; before the plug-in is set up the step is 0.
    Shapes: (B, T).
    """

    patch: int = 14
    share: float = 0.6
    at_start = True

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        seed = str(self.run.step if self.is_set_up else 0)
        return policy.forward(
            replace(batch, prompts=[self.masked(prompt, seed) for prompt in batch.prompts])
        )["logp"]

    def masked(self, prompt: Prompt, seed: str) -> Prompt:
        """The prompt with squares of all its images and videos blackened."""

        def blackened(media: tuple[Media, ...]) -> tuple[Media, ...]:
            return tuple(Blackened(medium, seed, self.patch, self.share) for medium in media)

        return replace(prompt, images=blackened(prompt.images), videos=blackened(prompt.videos), train=None)


@register("papo.masked_kl")
@dataclass(frozen=True, kw_only=True)
class PapoMaskedKl(LossTerm):
    """PAPO's masked-image KL: L = -KL(pi(. | image) || pi(. | masked image)), estimated by k3 on the sampled
    tokens (nats).

    `limit` is an upper bound of the estimate (0: none); `share` below 1 keeps only that share of a rollout's
    tokens, those with the largest KL. Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, eq. 2 (gamma
    0.01-0.02); log-ratios are clamped to +-20 and the estimate to +-10 as in the released code.
    """

    coef: float = 0.01
    limit: float = 0.0
    share: float = 1.0
    needs = ("papo.masked_logp",)

    def check(self, phase: PhaseContext) -> None:
        if not phase.family.is_multimodal:
            raise ConfigError(
                "loss_terms: 'papo.masked_kl' compares with masked images, and policy family "
                f"{phase.family.name!r} has no images; use a vision family"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        kl_BT = kl_estimate(
            x.logp_BT, x["papo.masked_logp"], x.mask_BT, kind="k3", clamp_log=20.0, clamp_value=10.0
        )
        metrics = {"kl_perception": kl_BT.detach()}
        if self.share < 1:
            kl_BT = torch.where(top_share(kl_BT, x.mask_BT, x.group_B, self.share, "rollout"), kl_BT, 0.0)
        return UnreducedLoss(-(kl_BT.clamp(max=self.limit) if self.limit else kl_BT), metrics)
