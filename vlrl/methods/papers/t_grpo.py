"""T-GRPO (Video-R1): rewards correct answers that need the order of a video's frames, by contrast with
rollouts on shuffled frames.

    t_grpo                  rollout strategy: adds rollouts on shuffled frames, which are scored and not
    trained on
    t_grpo.temporal_bonus   reward shaping: the bonus
    t_grpo.length_reward    reward shaping: Video-R1's bonus for correct answers of medium length
    t_grpo.contrast         metric: both accuracies and how often the bonus is given

Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, with released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vlrl.methods.common.correctness import mean_outcome
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Metric, RewardShaping
from vlrl.types import Clip, Edited, Group, Prompt, Request, Rollout

SHUFFLED_FRAMES = Capability(
    "t_grpo.shuffled_frames", hint="rollout: {name: t_grpo}"
)  # groups have rollouts of source "shuffled"
CONTRAST: Annotation[dict] = Annotation(
    "t_grpo.contrast",
    dict,
    hint="reward_shaping: {temporal: {name: t_grpo.temporal_bonus}}",
    doc='on a group: {"ordered": p, "shuffled": p~, "earned": 1.0 where p >= mu p~}',
)


@dataclass(frozen=True)
class ShuffledFrames(Edited):
    """`base`, a video, with its frames in a random order, which is a function of `seed`."""

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
    """T-GRPO's contrast: G rollouts of every prompt, and for a prompt with videos floor(share * G) more with
    the frames of each video permuted.

    The latter (source "shuffled") are scored, read by `t_grpo.temporal_bonus`, and not trained on. Prompts
    without video have none. Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, sec. 3.1; the released code
    has share 1/2 and one uniform permutation per prompt. Deviates: the permutation is a function of the run's
    seed, the step and the prompt, so that a run can be repeated, on any number of ranks.
    """

    share: float = 0.5
    provides = (SHUFFLED_FRAMES,)
    requires = (CONTRAST,)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]: shuffled rollouts per ordered one")

    def check(self, phase: PhaseContext) -> None:
        if not phase.family.is_multimodal:
            raise ConfigError(
                f"rollout: {self.name!r} shuffles the frames of videos, and the policy family "
                f"{phase.family.name!r} is text-only; use a vision family"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group, count in zip(groups, counts, strict=True):
            n = int(self.share * count)
            if group.prompt.videos and n:
                seed = self.seeds(run, group.prompt)
                prompt = replace(
                    group.prompt,
                    videos=tuple(
                        ShuffledFrames(video, seed + i) for i, video in enumerate(group.prompt.videos)
                    ),
                )
                requests.append(Request(prompt, run.sampling(group.prompt, 0), n, seed, tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "shuffled", False
            completion.request.tag.rollouts.append(rollout)
        return groups


def is_correct(rollout: Rollout, correct_at: float | None) -> bool:
    """Whether the outcome is above `correct_at`; None: whether it reaches that of its reward."""
    return (
        rollout.correct
        if correct_at is None
        else rollout.outcome is not None and rollout.outcome > correct_at
    )


@register("t_grpo.temporal_bonus")
@dataclass(frozen=True)
class TGrpoTemporalBonus(RewardShaping):
    """T-GRPO's temporal bonus: where p >= mu * p~, r_i + alpha for each correct ordered rollout.

    p and p~ are the mean outcomes of ordered and shuffled rollouts. A rollout is correct with an outcome
    above `correct_at` (None: from that of the outcome's reward on). CONTRAST of the group has p, p~ and the
    condition, for metric `t_grpo.contrast`.
    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 1-2; released code: mu 0.8, alpha 0.3, correct
    above 0.1. Edge: both accuracies 0: the condition holds, and no rollout is correct. Groups without
    shuffled rollouts keep their rewards.
    """

    alpha: float = 0.3
    mu: float = 0.8
    correct_at: float | None = 0.1
    provides = (CONTRAST,)
    requires = (SHUFFLED_FRAMES,)

    def __call__(self, group: Group) -> list[float]:
        ordered = [rollout for rollout in group if rollout.source != "shuffled"]
        shuffled = [rollout for rollout in group if rollout.source == "shuffled"]
        if not shuffled or not ordered:
            return group.rewards
        p, p_shuffled = mean_outcome(ordered), mean_outcome(shuffled)
        earned = p >= self.mu * p_shuffled
        CONTRAST.set(group, {"ordered": p, "shuffled": p_shuffled, "earned": float(earned)})
        return [
            r.reward + self.alpha * (earned and r.source != "shuffled" and is_correct(r, self.correct_at))
            for r in group
        ]


@register("t_grpo.length_reward")
@dataclass(frozen=True)
class TGrpoLengthReward(RewardShaping):
    """Video-R1's length reward: r_i + bonus for correct rollouts of `low` to `high` tokens, where at least
    two rollouts of the group are correct.

    A rollout is correct with an outcome above `correct_at` (None: from that of the outcome's reward on).
    Shuffled rollouts are left out. Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 3; released
    code: 0.2, 320 to 512 tokens, correct above 0.1.
    """

    bonus: float = 0.2
    low: int = 320
    high: int = 512
    correct_at: float | None = 0.1

    def __call__(self, group: Group) -> list[float]:
        correct = [rollout.source != "shuffled" and is_correct(rollout, self.correct_at) for rollout in group]
        if sum(correct) < 2:
            return group.rewards
        return [
            r.reward + self.bonus * (ok and self.low <= r.sampled_tokens <= self.high)
            for r, ok in zip(group, correct)
        ]


@register("t_grpo.contrast")
@dataclass(frozen=True)
class TGrpoContrast(Metric):
    """T-GRPO's contrast: means over the step's groups of p (ordered), p~ (shuffled) and [p >= mu * p~]
    (earned).

    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 1. Where p~ rises along with p, answers do not
    need the order of frames. Edge: groups without shuffled rollouts are left out; no numbers where no group
    has any. Units: accuracy, 0..1.
    """

    def check(self, phase: PhaseContext) -> None:
        if not phase.is_provided_anywhere(CONTRAST):
            raise ConfigError(
                f"metrics: {self.name!r} reads {CONTRAST.name!r}, which no phase's reward shaping writes; "
                f"add {CONTRAST.hint}"
            )

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        contrasts = [CONTRAST[group] for group in groups if CONTRAST.on(group)]
        return (
            {name: sum(values[name] for values in contrasts) / len(contrasts) for name in contrasts[0]}
            if contrasts
            else {}
        )
