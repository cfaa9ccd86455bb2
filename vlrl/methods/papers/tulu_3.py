"""Tulu 3: reinforcement learning with verifiable rewards (RLVR), a constant reward for a correct answer and a
penalty for a truncated one.

`tulu_3` is a reward shaping. Paper: Lambert et al. 2024 (Tulu 3), arXiv:2411.15124.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("tulu_3")
@dataclass(frozen=True)
class Tulu3(RewardShaping):
    """Tulu 3's verifiable reward: alpha for a correct rollout, else 0; `cut` for a truncated completion.

    Paper: Lambert et al. 2024 (Tulu 3), arXiv:2411.15124, sec. 6: v(x, y) = alpha if correct, else 0, alpha
    10; -10 without an end-of-text token, also where the answer is correct. Released code:
    allenai/open-instruct, ppo_vllm_thread_ray_gtrl.py before commit bac93931.
    """

    alpha: float = 10.0
    cut: float = -10.0

    def __call__(self, group: Group) -> list[float]:
        return [self.cut if rollout.truncated else self.alpha * rollout.correct for rollout in group]
