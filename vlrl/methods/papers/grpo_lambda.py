"""GRPO-lambda: a length penalty for the groups of a step that are solved best, the plain 0/1 reward for the
others.

Paper: Dai et al. 2025 (GRPO-lambda), arXiv:2505.18086. The form of the penalty is that of Arora and Zanette
2025, arXiv:2502.04463.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.functional.exact import mean, std
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.registry import register
from vlrl.types import Group, Rollout


@register("grpo_lambda")
@dataclass(frozen=True)
class GRPOLambda(GRPO):
    """GRPO-lambda's advantage: GRPO on r - alpha sigma((n - mean n) / std n) for correct rollouts of the
    best-solved groups, on r elsewhere.

    n is the number of sampled tokens; its mean and std are over the correct rollouts of the group.
    Best-solved is the `share` of the step's groups, on all ranks, with the most correct rollouts, ties
    included. Paper: Dai et al. 2025 (GRPO-lambda), arXiv:2505.18086; the penalty: Arora and Zanette 2025,
    arXiv:2502.04463. Deviates: no code was found; `share` and `alpha` are ours. Edge: a group without a
    correct rollout is never chosen; a single correct rollout has sigma 1/2. A chosen group of correct
    rollouts alone has a signal: its lengths.
    """

    share: float = 0.5
    alpha: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not 0 <= self.alpha < 1:
            raise ValueError(f"share={self.share} must be in [0, 1] and alpha={self.alpha} in [0, 1)")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rates = [success_rate(group.rollouts) for group in groups]
        count = math.ceil(self.share * len(groups) - 1e-9)
        lowest_rate = sorted(rates, reverse=True)[count - 1] if count else math.inf
        return super().__call__(
            [
                penalised(group, self.alpha) if rate >= lowest_rate and rate > 0 else group
                for group, rate in zip(groups, rates)
            ]
        )


def penalised(group: Group, alpha: float) -> Group:
    """The group with the length penalty in the rewards of its correct rollouts."""
    correct = [rollout for rollout in group if rollout.correct]
    penalties = {
        id(rollout): alpha * value for rollout, value in zip(correct, sigmoid_of_length(correct), strict=True)
    }
    return Group(
        group.prompt,
        [replace(rollout, reward=rollout.reward - penalties.get(id(rollout), 0.0)) for rollout in group],
        group.id,
    )


def sigmoid_of_length(rollouts: Sequence[Rollout]) -> list[float]:
    """sigma((n - mean n) / std n) of the rollouts' lengths; 1/2 where the lengths are equal."""
    lengths = [float(rollout.sampled_tokens) for rollout in rollouts]
    centre, scale = mean(lengths), std(lengths)
    return [1 / (1 + math.exp(-(n - centre) / scale)) if scale else 0.5 for n in lengths]
