"""Some rollouts see a noisy picture, fewer and fewer of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vlrl.methods._pixels import Repainted
from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.run import Run


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
class NoisyBranch(Independent):
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

    def check(self, run: Run) -> None:
        if not run.family.sees:
            raise ConfigError(f"strategy vogue makes pictures noisy, which policy {run.family.name!r} does not see; use a vision family")

    def share(self, step: int) -> float:
        """p."""
        return self.first + (self.last - self.first) * min(1.0, step / self.steps)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
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
                requests.append(Request(prompt, run.decode(prompt, 0), n, self.seeds(run, prompt), tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.info["noisy"] = True
            completion.request.tag.rollouts.append(rollout)
        return groups
