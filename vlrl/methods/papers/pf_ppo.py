"""PF-PPO: policy filtration, PPO on only those responses of a prompt whose reward can be trusted, for noisy
reward models.

`pf_ppo` is a token weight per rollout; the critic's loss has the same (`critic_model`).

Paper: Shen and Zhang 2024 (PF-PPO), arXiv:2409.06957; checked against replay_buffer.py of the release
(select_min_max, select_max_random), which draws rollouts with these weights for its updates. Deviates: here
each rollout is weighted by the number of times that it would be drawn on average, so all are in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.methods.common.groups import members
from vlrl.methods.core.critic import CRITIC_WEIGHT
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs


@register("pf_ppo")
@dataclass(frozen=True)
class PfPpo(TokenWeight):
    """PF-PPO's filter weights: n w_i / sum_j w_j over the n rollouts of a group.

    `keep` "best_worst": w = 1 for the best and the worst, else 0; "best_random": 0.4 for the best, 0.1 for
    the others; "best": 1 for the best alone. Edge: of rollouts with equal rewards the first is the worst and
    the last the best, as in the release. Shapes: (B, 1).
    """

    keep: Literal["best_worst", "best_random", "best"] = "best_worst"

    def prepare(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for rollout, weight in zip(
                group, self.weights(torch.tensor(group.rewards)).tolist(), strict=True
            ):
                CRITIC_WEIGHT.set(rollout, weight)

    def __call__(self, x: LossInputs) -> Tensor:
        out_B = torch.zeros_like(x.reward_B)
        for rows in members(x.group_B, "group"):
            out_B[rows] = self.weights(x.reward_B[rows])
        return out_B[:, None]

    def weights(self, reward_G: Tensor) -> Tensor:
        """(G,): the weights of a group's rollouts."""
        worst, best, other = {
            "best_worst": (1.0, 1.0, 0.0),
            "best_random": (0.1, 0.4, 0.1),
            "best": (0.0, 1.0, 0.0),
        }[self.keep]
        order = reward_G.sort(stable=True).indices
        weight_G = torch.full_like(reward_G, other)
        weight_G[order[0]], weight_G[order[-1]] = worst, best
        return weight_G * len(reward_G) / weight_G.sum()
