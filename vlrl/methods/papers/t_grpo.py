"""Ordered samples, and half as many on the same video with its frames shuffled.

A bonus for answers that need the order of frames; and Video-R1's bonus for answers of middle length.

What T-GRPO compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import Metric, RewardShaping
from vlrl.types import Clip, Edited, Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


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
class TGrpo(Independent):
    """G rollouts of every prompt, and for a prompt with videos floor(share * G) more with the frames of each video permuted.

    Those (source "shuffled") are scored and seen by shape `t_grpo`, and not trained on. Prompts without video get none.
    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, sec. 3.1; the released code has share 1/2 and one uniform permutation per prompt.
    Deviates: the permutation is a function of the run's seed, the step and the prompt, so that a run can be repeated, on any number of ranks.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]: shuffled rollouts per ordered one")

    def check(self, run: RunContext) -> None:
        if not run.family.is_multimodal:
            raise ConfigError(f"strategy t_grpo shuffles the frames of videos, which policy {run.family.name!r} does not see; use a vision family")
        if not any(shape.name == "t_grpo.temporal_bonus" for shape in run.reward_shaping.values()):
            raise ConfigError("strategy t_grpo samples on shuffled frames for a comparison that nothing makes; add shape: {t_grpo: {name: t_grpo}}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group, count in zip(groups, counts, strict=True):
            n = int(self.share * count)
            if group.prompt.videos and n:
                seed = self.seeds(run, group.prompt)
                prompt = replace(group.prompt, videos=tuple(ShuffledFrames(video, seed + i) for i, video in enumerate(group.prompt.videos)))
                requests.append(Request(prompt, run.sampling(group.prompt, 0), n, seed, tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "shuffled", False
            completion.request.tag.rollouts.append(rollout)
        return groups


class ReadsAccuracy:
    """Mixed into shapes with the fields `slot`, the reward that counts as accuracy (empty: the first with a weight), and `seen`."""

    slot: str
    seen: dict[str, str]

    def check_slot(self, run: RunContext) -> None:
        """Raise ConfigError for a slot that the run has no reward for."""
        if self.slot and self.slot not in run.rewards:
            raise ConfigError(f"shape.{self.name}.slot: no reward slot {self.slot!r}; known: {', '.join(run.rewards)}")  # type: ignore[attr-defined]

    def setup(self, run: RunContext) -> None:
        self.seen["slot"] = self.slot or next(slot for slot, reward in run.rewards.items() if reward.weight > 0)

    def accuracy(self, rollout: Rollout) -> float:
        """The raw accuracy of a rollout."""
        return rollout.rewards[self.slot or self.seen["slot"]]


@register("t_grpo.temporal_bonus")
@dataclass(frozen=True)
class TGrpoTemporalBonus(ReadsAccuracy, RewardShaping):
    """If p >= mu * p~, r_i + alpha for each ordered rollout with accuracy above `least`; p and p~ are the mean accuracies of ordered and shuffled
    rollouts.

    `slot` is the accuracy (empty: the first reward with a weight). Groups without shuffled rollouts (strategy `t_grpo`) are left alone. Probe
    `t_grpo` reads p, p~ and the condition from `group.info`.
    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 1-2; released code: mu 0.8, alpha 0.3, least 0.1.
    Edge: both accuracies 0: the condition holds, and no rollout is right enough for the bonus.
    """

    alpha: float = 0.3
    mu: float = 0.8
    least: float = 0.1
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "t_grpo":
            raise ConfigError(
                f"shape t_grpo needs the shuffled rollouts that strategy {run.rollout.name!r} does not make; use strategy: {{name: t_grpo}}"
            )
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        ordered = [self.accuracy(rollout) for rollout in group if rollout.source != "shuffled"]
        shuffled = [self.accuracy(rollout) for rollout in group if rollout.source == "shuffled"]
        if not shuffled or not ordered:
            return group.rewards
        p, p_shuffled = sum(ordered) / len(ordered), sum(shuffled) / len(shuffled)
        earned = p >= self.mu * p_shuffled
        group.info["t_grpo"] = {"ordered": p, "shuffled": p_shuffled, "earned": float(earned)}
        return [r.reward + self.alpha * (earned and r.source != "shuffled" and self.accuracy(r) > self.least) for r in group]


@register("t_grpo.length_reward")
@dataclass(frozen=True)
class TGrpoLengthReward(ReadsAccuracy, RewardShaping):
    """r_i + bonus for right rollouts of `low` to `high` tokens, where at least two rollouts of the group are right (accuracy above `least`).

    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 3; released code: 0.2, 320 to 512 tokens.  Shuffled rollouts are left out.
    """

    bonus: float = 0.2
    low: int = 320
    high: int = 512
    least: float = 0.1
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __call__(self, group: Group) -> list[float]:
        right = [rollout.source != "shuffled" and self.accuracy(rollout) > self.least for rollout in group]
        if sum(right) < 2:
            return group.rewards
        return [r.reward + self.bonus * (ok and self.low <= len(r) <= self.high) for r, ok in zip(group, right)]


@register("t_grpo.contrast")
@dataclass(frozen=True)
class TGrpoContrast(Metric):
    """Means over the step's groups of p (ordered), p~ (shuffled) and [p >= mu * p~] (earned), as shape `t_grpo` left them.

    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 1.  A p~ that rises along with p says that answers do not need the order of frames.
    Edge: groups without shuffled rollouts are left out; nothing where no group has any. Units: accuracy, 0..1.
    """

    def check(self, run: RunContext) -> None:
        if not any(shape.name == "t_grpo.temporal_bonus" for phase in run.phases for shape in phase.maps["reward_shaping"].values()):
            raise ConfigError("metrics: t_grpo reads what shape t_grpo leaves, and there is none; add shape: {t_grpo: {name: t_grpo}}, or drop it")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        found = [group.info["t_grpo"] for group in groups if "t_grpo" in group.info]
        return {name: sum(values[name] for values in found) / len(found) for name in found[0]} if found else {}
