"""Ordered samples, and half as many on the same video with its frames shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Clip, Edited, Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.run import Run


@dataclass(frozen=True)
class ShuffledFrames(Edited):
    """`base`, a video, with its frames in the random order that `seed` gives."""

    seed: int

    @property
    def key(self) -> str:
        return f"{self.base.key}/shuffled-{self.seed}"

    def load(self) -> Clip:
        clip = self.base.load()
        if not isinstance(clip, Clip):
            raise TypeError(f"frames can be shuffled only in a video, not in {self.base.key}")
        return Clip(clip.frames_THWC[np.random.default_rng(self.seed).permutation(len(clip))], clip.fps)


@register("t_grpo")
@dataclass(frozen=True)
class Temporal(Independent):
    """G rollouts of every prompt, and for a prompt with videos floor(share * G) more with the frames of each video permuted.

    Those (source "shuffled") are scored and seen by shape `t_grpo`, and not trained on. Prompts without video get none.
    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, sec. 3.1; the released code has share 1/2 and one uniform permutation per prompt.
    Deviates: the permutation is a function of the run's seed, the step and the prompt, so that a run can be repeated, on any number of ranks.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]: shuffled rollouts per ordered one")

    def check(self, run: Run) -> None:
        if not run.family.sees:
            raise ConfigError(f"strategy t_grpo shuffles the frames of videos, which policy {run.family.name!r} does not see; use a vision family")
        if not any(shape.name == "t_grpo" for shape in run.shape.values()):
            raise ConfigError("strategy t_grpo samples on shuffled frames for a comparison that nothing makes; add shape: {t_grpo: {name: t_grpo}}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group, count in zip(groups, counts, strict=True):
            n = int(self.share * count)
            if group.prompt.videos and n:
                seed = self.seeds(run, group.prompt)
                prompt = replace(group.prompt, videos=tuple(ShuffledFrames(video, seed + i) for i, video in enumerate(group.prompt.videos)))
                requests.append(Request(prompt, run.decode(group.prompt, 0), n, seed, tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "shuffled", False
            completion.request.tag.rollouts.append(rollout)
        return groups
