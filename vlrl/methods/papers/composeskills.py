"""Compositions of skills (RL-Compositionality): an answer that was cut at the length limit has the lowest
reward.

    composeskills.cut     reward shaping: the total of a truncated rollout

Paper: arXiv:2509.25123; PRIME-RL/RL-Compositionality at 97c9f0a, verl/workers/reward_manager/mp.py
(penalize_overlong) and verl/utils/reward_score/codeio.py (1 right, 0 wrong, -1 without an answer that can be
read).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("composeskills.cut")
@dataclass(frozen=True)
class ComposeskillsCut(RewardShaping):
    """The total of a rollout that was cut at the length limit is `total`, also where its answer is right; the
    others keep theirs.

    Paper: arXiv:2509.25123; PRIME-RL/RL-Compositionality at 97c9f0a, verl/workers/reward_manager/mp.py
    (-1, as for an answer that cannot be read). With a reward of 1 for the form beside 1 for the answer both
    are 0, and the release's 1, 0 and -1 are 2, 1 and 0.
    """

    total: float = 0.0

    def __call__(self, group: Group) -> list[float]:
        return [self.total if rollout.truncated else rollout.reward for rollout in group]
