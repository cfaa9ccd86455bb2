"""Some rollouts see a noisy picture, fewer and fewer of them.

Log-probs of the same completion on the picture without noise.

More for what the policy would not say of the clean picture, and for what it is unsure of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vlrl.functional.exact import mean
from vlrl.methods.common.pixels import Repainted
from vlrl.methods.core.advantage import GRPO, check_credit
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import AuxTensor
from vlrl.types import Group, Prompt, Request, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.context import RunContext


@dataclass(frozen=True)
class Noisy(Repainted):
    """`base` with Gaussian noise of standard deviation `sigma` on pixels of 0..1, cut off there; in a video the same noise in every frame."""

    sigma: float

    @property
    def key(self) -> str:
        return f"{self.base.key}/noise{self.sigma:g}-{self.seed}"

    def repaint(self, pixels: np.ndarray) -> np.ndarray:
        noise = self.sigma * self.draw().standard_normal(pixels.shape[-3:])
        return (np.clip(pixels / 255 + noise, 0, 1) * 255).round().astype(np.uint8)


def clean(prompt: Prompt) -> Prompt:
    """The prompt with its noisy pictures as they were."""
    pictures, videos = (tuple(m.base if isinstance(m, Noisy) else m for m in media) for media in (prompt.images, prompt.videos))
    return replace(prompt, images=pictures, videos=videos, train=None)


@register("vogue")
@dataclass(frozen=True)
class Vogue(Independent):
    """n rollouts of a prompt with pictures; each sees, and is trained on, a noisy copy of them with probability p, which goes from `first` to `last`.

    p is linear over the first `steps` steps of the phase. Noise is Gaussian (`sigma`, pixels of 0..1), one draw per step and prompt. Noisy rollouts
    carry `info["noisy"]`; advantage `vogue` reads it.
    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444 (raw and noisy branch, sigma 0.4, annealed sampling), as in its abstract, figure and reviews; the
    equations could not be read. `first`, `last` and `steps` are ours. Edge: prompts without pictures are sampled as ever.
    """

    sigma: float = 0.4
    first: float = 0.5
    last: float = 0.0
    steps: int = 200

    def __post_init__(self) -> None:
        if self.sigma <= 0 or self.steps < 1 or not (0 <= self.first <= 1 and 0 <= self.last <= 1):
            raise ValueError(f"sigma={self.sigma} must be above 0, first={self.first} and last={self.last} in [0, 1], steps={self.steps} at least 1")

    def check(self, run: RunContext) -> None:
        if not run.family.is_multimodal:
            raise ConfigError(f"strategy vogue makes pictures noisy, which policy {run.family.name!r} does not see; use a vision family")

    def share(self, step: int) -> float:
        """p."""
        return self.first + (self.last - self.first) * min(1.0, step / self.steps)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        p, noisy = self.share(run.phase_step), []
        draws = [random.Random(self.seeds(run, prompt)) for prompt in prompts]
        for prompt, count, draw in zip(prompts, counts, draws, strict=True):
            noisy.append(sum(draw.random() < p for _ in range(count)) if prompt.images or prompt.videos else 0)
        groups = super().__call__(prompts, [count - n for count, n in zip(counts, noisy)], run)
        requests = []
        for group, n, draw in zip(groups, noisy, draws):
            if n:
                seed = draw.getrandbits(31)
                media = (tuple(Noisy(m, seed + i, self.sigma) for i, m in enumerate(some)) for some in (group.prompt.images, group.prompt.videos))
                prompt = replace(group.prompt, **dict(zip(("images", "videos"), media)), train=None)
                requests.append(Request(prompt, run.sampling(prompt, 0), n, self.seeds(run, prompt), tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.info["noisy"] = True
            completion.request.tag.rollouts.append(rollout)
        return groups


@register("vogue.clean_logp")
@dataclass(frozen=True, kw_only=True)
class VogueCleanLogp(AuxTensor):
    """log pi(y_t | x, y_<t), in nats, with the pictures of x as they were before strategy `vogue` made them noisy.

    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444 (the raw branch's forward pass). Of the policy at the start of the step, without gradient.
    Edge: a prompt without noise gives the log-probs themselves. Shapes: (B, T).
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        return policy.forward(replace(batch, prompts=[clean(prompt) for prompt in batch.prompts]))["logp"]


def divergence(seen: float, other: float) -> float:
    """(e^d - 1) d / 2, d = other - seen: for tokens drawn as seen its mean is half the sum of both KL divergences. Never negative."""
    d = max(-20.0, min(20.0, other - seen))
    return math.expm1(d) * d / 2


@register("vogue.visual_uncertainty")
@dataclass(frozen=True)
class VogueVisualUncertainty(GRPO):
    """A_t = A + min(a_v u_t, |A| / b_v) + min(a_e H_t, |A| / b_e), A GRPO's, H_t the token's entropy; u_t only on the noisy picture, else 0.

    u_t estimates (KL(noisy || raw) + KL(raw || noisy)) / 2 from the token alone: (e^d - 1) d / 2, d = log pi_raw(y_t) - log pi_noisy(y_t).
    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444: capped bonuses for the noisy branch's advantage and for entropy, a_v 1, b_v 2, a_e 0.4, b_e 2 as
    its reviews quote them; the equations could not be read. Deviates: the divergence is estimated from sampled tokens, not summed over the
    vocabulary; that both branches get the entropy bonus is our reading. For strategy `vogue`, credit `per_token`. Edge: A = 0 stays 0.
    """

    writes_tokens = True
    a_v: float = 1.0
    b_v: float = 2.0
    a_e: float = 0.4
    b_e: float = 2.0
    needs = ("vogue.clean_logp", "entropy")

    def __post_init__(self) -> None:
        if min(self.a_v, self.a_e) < 0 or min(self.b_v, self.b_e) <= 1:
            raise ValueError(f"a_v={self.a_v}, a_e={self.a_e} must not be negative; b_v={self.b_v}, b_e={self.b_e} must be above 1, or signs turn")

    def check(self, run: RunContext) -> None:
        super().check(run)
        if run.rollout.name != "vogue":
            raise ConfigError(f"advantage vogue reads pictures that strategy {run.rollout.name!r} does not disturb; use strategy: {{name: vogue}}")
        check_credit(run, "vogue")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group, row in zip(groups, super().__call__(groups), strict=True):
            for rollout, advantage in zip(group, row, strict=True):
                rollout.info["token_advantages"] = self.of_tokens(rollout, advantage)
            out.append([mean(rollout.info["token_advantages"]) for rollout in group])
        return out

    def of_tokens(self, rollout: Rollout, advantage: float) -> list[float]:
        """The advantage with its bonuses, by token."""
        noisy, size, signals = rollout.info.get("noisy", False), abs(advantage), rollout.signals
        return [
            advantage + (min(self.a_v * divergence(seen, raw), size / self.b_v) if noisy else 0.0) + min(self.a_e * unsure, size / self.b_e)
            for seen, raw, unsure in zip(signals["old_logp"], signals["vogue.clean_logp"], signals["entropy"], strict=True)
        ]
