"""VOGUE: visual uncertainty guided exploration; some rollouts see a noisy picture, and tokens that depend on
the noise gain advantage.

    vogue                      rollout strategy: raw and noisy rollouts of a prompt in one group
    vogue.clean_logp           auxiliary tensor: log-probs of the same completions with the original pictures
    vogue.visual_uncertainty   advantage: GRPO's plus capped bonuses for visual uncertainty and entropy

Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444, as in its abstract, figure and reviews; the equations could
not be read.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vlrl.methods.common.pixels import Repainted
from vlrl.methods.core.advantage import GRPO, set_token_advantages
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AuxTensor
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor
from vlrl.types import Group, Prompt, Request, Rollout, TokenBatch

NOISY: Annotation[bool] = Annotation(
    "vogue.noisy",
    bool,
    hint="rollout: {name: vogue}",
    doc="whether the rollout was sampled on noisy pictures",
)


@dataclass(frozen=True)
class Noisy(Repainted):
    """`base` with Gaussian noise of standard deviation `sigma` on pixels of 0..1, clipped to 0..1; in a video
    the same noise in every frame."""

    sigma: float

    @property
    def key(self) -> str:
        return f"{self.base.key}/noise{self.sigma:g}-{self.seed}"

    def repaint(self, pixels: np.ndarray) -> np.ndarray:
        noise = self.sigma * self.draw().standard_normal(pixels.shape[-3:])
        return (np.clip(pixels / 255 + noise, 0, 1) * 255).round().astype(np.uint8)


def clean(prompt: Prompt) -> Prompt:
    """The prompt with its noisy pictures replaced by the original ones."""
    pictures, videos = (
        tuple(m.base if isinstance(m, Noisy) else m for m in media)
        for media in (prompt.images, prompt.videos)
    )
    return replace(prompt, images=pictures, videos=videos, train=None)


@register("vogue")
@dataclass(frozen=True)
class Vogue(Independent):
    """VOGUE's two branches: n rollouts of a prompt with pictures; each is sampled, and trained, on a noisy
    copy of them with probability p.

    p goes linearly from `first` to `last` over the first `steps` steps of the phase. The noise is Gaussian
    (`sigma`, pixels of 0..1), one draw per step and prompt. Noisy rollouts have the annotation NOISY, for
    advantage `vogue.visual_uncertainty`.
    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444 (raw and noisy branch, sigma 0.4, annealed sampling), as
    in its abstract, figure and reviews; the equations could not be read. `first`, `last` and `steps` are
    ours. Edge: all rollouts of a prompt without pictures are plain samples.
    """

    sigma: float = 0.4
    first: float = 0.5
    last: float = 0.0
    steps: int = 200
    provides = (NOISY,)

    def __post_init__(self) -> None:
        if self.sigma <= 0 or self.steps < 1 or not (0 <= self.first <= 1 and 0 <= self.last <= 1):
            raise ValueError(
                f"sigma={self.sigma} must be above 0, first={self.first} and last={self.last} in [0, 1], "
                f"steps={self.steps} at least 1"
            )

    def check(self, phase: PhaseContext) -> None:
        if not phase.family.is_multimodal:
            raise ConfigError(
                f"rollout: {self.name!r} adds noise to pictures, and the policy family {phase.family.name!r} "
                "is text-only; use a vision family"
            )

    def share(self, step: int) -> float:
        """p."""
        return self.first + (self.last - self.first) * min(1.0, step / self.steps)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        p, noisy = self.share(run.phase_step), []
        draws = [random.Random(self.seeds(run, prompt)) for prompt in prompts]
        for prompt, count, draw in zip(prompts, counts, draws, strict=True):
            noisy.append(
                sum(draw.random() < p for _ in range(count)) if prompt.images or prompt.videos else 0
            )
        groups = super().__call__(prompts, [count - n for count, n in zip(counts, noisy)], run)
        requests = []
        for group, n, draw in zip(groups, noisy, draws):
            if n:
                seed = draw.getrandbits(31)
                images, videos = (
                    tuple(Noisy(m, seed + i, self.sigma) for i, m in enumerate(media))
                    for media in (group.prompt.images, group.prompt.videos)
                )
                prompt = replace(group.prompt, images=images, videos=videos, train=None)
                requests.append(
                    Request(prompt, run.sampling(prompt, 0), n, self.seeds(run, prompt), tag=group)
                )
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            NOISY.set(rollout, True)
            completion.request.tag.rollouts.append(rollout)
        return groups


@register("vogue.clean_logp")
@dataclass(frozen=True, kw_only=True)
class VogueCleanLogp(AuxTensor):
    """VOGUE's raw branch: log pi(y_t | x, y_<t), in nats, with the original pictures of x, without the noise
    of rollout `vogue`.

    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444 (the raw branch's forward pass). Of the policy at the
    start of the step, without gradient. Edge: a prompt without noise gives the log-probs themselves. Shapes:
    (B, T).
    """

    at_start = True

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        return policy.forward(replace(batch, prompts=[clean(prompt) for prompt in batch.prompts]))["logp"]


def divergence(logp: float, clean_logp: float) -> float:
    """(e^d - 1) d / 2, d = clean_logp - logp: its mean over sampled tokens is half the sum of both KL
    divergences. Never negative; |d| <= 20."""
    d = max(-20.0, min(20.0, clean_logp - logp))
    return math.expm1(d) * d / 2


@register("vogue.visual_uncertainty")
@dataclass(frozen=True)
class VogueVisualUncertainty(GRPO):
    """VOGUE's advantage: A_t = A + min(a_v u_t, |A| / b_v) + min(a_e H_t, |A| / b_e), A GRPO's, H_t the
    token's entropy.

        u_t = (e^d - 1) d / 2,   d = log pi_raw(y_t) - log pi_noisy(y_t);   0 but for noisy rollouts

    u_t estimates (KL(noisy || raw) + KL(raw || noisy)) / 2 from the token alone. For rollout `vogue`,
    token_credit `per_token`. Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444: capped bonuses, a_v 1, b_v 2,
    a_e 0.4, b_e 2 as its reviews quote them; the equations could not be read. Deviates: the divergence is
    estimated from sampled tokens, not summed over the vocabulary; that both branches get the entropy bonus is
    our reading. Edge: A = 0 stays 0.
    """

    a_v: float = 1.0
    b_v: float = 2.0
    a_e: float = 0.4
    b_e: float = 2.0
    needs = ("vogue.clean_logp", "entropy")
    provides = (TOKEN_ADVANTAGES,)
    requires = (NOISY,)

    def __post_init__(self) -> None:
        if min(self.a_v, self.a_e) < 0 or min(self.b_v, self.b_e) <= 1:
            raise ValueError(
                f"a_v={self.a_v}, a_e={self.a_e} must not be negative; b_v={self.b_v}, b_e={self.b_e} must "
                "be above 1, "
                "because a larger bonus changes the sign of an advantage"
            )

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        advantages = super().__call__(groups)
        rows = [
            self.of_tokens(rollout, a)
            for group, row in zip(groups, advantages, strict=True)
            for rollout, a in zip(group, row, strict=True)
        ]
        return set_token_advantages(groups, rows)

    def of_tokens(self, rollout: Rollout, advantage: float) -> list[float]:
        """The advantage with its bonuses, by token."""
        noisy, size, signals = NOISY.get(rollout, False), abs(advantage), rollout.signals
        return [
            advantage
            + (min(self.a_v * divergence(logp, clean_logp), size / self.b_v) if noisy else 0.0)
            + min(self.a_e * entropy, size / self.b_e)
            for logp, clean_logp, entropy in zip(
                signals["old_logp"], signals["vogue.clean_logp"], signals["entropy"], strict=True
            )
        ]
