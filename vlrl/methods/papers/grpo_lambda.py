"""Length counts only for the prompts that the policy solves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.functional.exact import mean, std
from vlrl.methods.core.advantage import GRPO
from vlrl.registry import register
from vlrl.types import Group, Rollout


def sigmoid_of_length(rollouts: Sequence[Rollout]) -> list[float]:
    """sigma((n - mean n) / std n) of the lengths of these rollouts; one half where they do not differ."""
    lengths = [float(len(rollout)) for rollout in rollouts]
    centre, spread = mean(lengths), std(lengths)
    return [1 / (1 + math.exp(-(n - centre) / spread)) if spread else 0.5 for n in lengths]


@register("grpo_lambda")
@dataclass(frozen=True)
class GRPOLambda(GRPO):
    """GRPO on r - alpha sigma((n - mean n) / std n) for the right rollouts of the `share` of groups with the most right ones, on r elsewhere.

    n in tokens, mean and std over the right rollouts of the group; the groups of all ranks are compared.
    Paper: Dai et al. 2025 (GRPO-lambda), arXiv:2505.18086 (the switch between length penalty and 0/1 reward by the groups' correctness); the
    penalty: Arora and Zanette 2025, arXiv:2502.04463. Deviates: no code was found, so `share` and `alpha` are ours; groups that tie with the last
    one chosen are chosen too. Edge: a group without a right rollout is never chosen; one right rollout has sigma 1/2. Right: a reward above
    `threshold`. A group of right rollouts only has a signal: its lengths.
    """

    share: float = 0.5
    alpha: float = 0.2
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not 0 <= self.alpha < 1:
            raise ValueError(f"share, alpha: must be in [0, 1] and [0, 1), got {self.share} and {self.alpha}")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        ratios = [mean([float(r > self.threshold) for r in group.rewards]) for group in groups]
        count = math.ceil(self.share * len(groups) - 1e-9)
        cut = sorted(ratios, reverse=True)[count - 1] if count else math.inf
        return super().__call__([self.shortened(group) if ratio >= cut and ratio > 0 else group for group, ratio in zip(groups, ratios)])

    def shortened(self, group: Group) -> Group:
        """The group with the length penalty in the rewards of its right rollouts."""
        right = [rollout for rollout in group if rollout.reward > self.threshold]
        lower = {id(rollout): self.alpha * value for rollout, value in zip(right, sigmoid_of_length(right), strict=True)}
        return Group(group.prompt, [replace(rollout, reward=rollout.reward - lower.get(id(rollout), 0.0)) for rollout in group], group.id)
