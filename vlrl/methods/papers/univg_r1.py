"""UniVG-R1: difficulty-aware weighting, larger weights for prompts with a low mean reward of their group.

`univg_r1` is a token weight. Paper: UniVG-R1, arXiv:2505.14231, with released code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vlrl.functional import group_mean
from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs


@register("univg_r1")
@dataclass(frozen=True)
class UnivgR1(TokenWeight):
    """UniVG-R1's difficulty weight: w(m) = e^(1 - m) ("exp"), (1.05 - m)^k ("power") or -ln(0.02 + m)
    ("log"), m the group's mean reward in [0, 1].

    `slot` names a raw reward, "" is the total reward. Paper: UniVG-R1, arXiv:2505.14231. Released code:
    AMAP-ML/UniVG-R1, src/open-r1-multimodal/src/open_r1/trainer/grpo_trainer.py and
    run_scripts/run_grpo_univg.sh, commit 44868ea (the three forms; "exp" is run; m is the mean IoU over a
    device's batch of 8, which is one group). Deviates: weights are at least 0. Edge: a group with m = 1 has
    weight e^0 = 1 under "exp". Raises KeyError where a rollout was not scored by `slot`. Shapes: (B, 1).
    """

    slot: RewardSlot = ""
    form: Literal["exp", "power", "log"] = "exp"
    k: float = 1.0

    def __call__(self, x: LossInputs) -> Tensor:
        raw = (
            [rollout.rewards[self.slot] for rollout in x.batch.rollouts] if self.slot else x.reward_B.tolist()
        )
        mean_B = group_mean(torch.tensor(raw, dtype=x.logp_BT.dtype, device=x.logp_BT.device), x.group_B)
        table: dict[str, Callable[[float], float]] = {
            "exp": lambda m: math.exp(1 - m),
            "power": lambda m: max(0.0, 1.05 - m) ** self.k,
            "log": lambda m: max(0.0, -math.log(max(1e-9, 0.02 + m))),
        }
        weights = [table[self.form](float(m)) for m in mean_B.tolist()]
        return torch.tensor(weights, dtype=x.logp_BT.dtype, device=x.logp_BT.device)[:, None]
