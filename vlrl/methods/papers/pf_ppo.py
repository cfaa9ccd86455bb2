"""PF-PPO: policy filtration, PPO on only those responses of a prompt whose reward can be trusted, for noisy
reward models.

`pf_ppo` is a token weight per rollout.

Paper: Shen and Zhang 2024 (PF-PPO), arXiv:2409.06957; checked against replay_buffer.py of the release
(select_min_max, select_max_random), which draws rollouts with these weights for its updates. Deviates: here
each rollout is weighted by the number of times that it would be drawn on average, so all are in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.methods.common.groups import members
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs


@register("pf_ppo")
@dataclass(frozen=True)
class PfPpo(TokenWeight):
    """PF-PPO's filter weights: n w_i / sum_j w_j over the n rollouts of a group.

    `keep` "best_worst": w = 1 for the best and the worst, else 0; "best_random": 0.4 for the best, 0.1 for
    the others; "best": 1 for the best alone. Edge: of rollouts with equal rewards the first is the worst and
    the last the best, as in the release. Shapes: (B, 1).
    """

    keep: Literal["best_worst", "best_random", "best"] = "best_worst"

    def __call__(self, x: LossInputs) -> Tensor:
        out_B = torch.zeros_like(x.reward_B)
        worst, best, other = {
            "best_worst": (1.0, 1.0, 0.0),
            "best_random": (0.1, 0.4, 0.1),
            "best": (0.0, 1.0, 0.0),
        }[self.keep]
        for rows in members(x.group_B, "group"):
            order = x.reward_B[rows].sort(stable=True).indices
            weight = torch.full_like(x.reward_B[rows], other)
            weight[order[0]], weight[order[-1]] = worst, best
            out_B[rows] = weight * len(rows) / weight.sum()
        return out_B[:, None]
