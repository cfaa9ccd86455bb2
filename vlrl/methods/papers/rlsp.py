"""RLSP: reinforcement learning via self-play with separate rewards for a correct outcome and for exploration
(long reasoning).

`rlsp` is a reward shaping.

Paper: Ye et al. 2025 (RLSP), arXiv:2502.06773, sec. 3: R = alpha R_correct + (1 - alpha) R_explore.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout


@register("rlsp")
@dataclass(frozen=True)
class Rlsp(RewardShaping):
    """RLSP's exploration rewards: b = r - unanswered 1[no answer in the form] - length / n; with a judge of
    the effort alpha b + (1 - alpha) e.

    n is the number of sampled tokens, so that `length` pays for longer reasoning, the less the longer it is
    already. Released code: GuanghaoYe/Emergence-of-Thinking e7feea7d, openrlhf/cli/orm_server.py (alpha 0.8,
    length 20, 0.5 without a box) and gpt_reward.py (the judge's instructions). Deviates: n counts all sampled
    tokens, in the release those before the box. Edge: e is 0.5 where the judge gives no score; a rollout
    without tokens counts as one token.

    Attributes:
        effort: Slot whose raw score is e in [0, 1], a judge of how hard the policy tried (give it weight 0);
            "" is none.
        form: A regular expression that an answer must contain ("": any does).
    """

    alpha: float = 0.8
    length: float = 20.0
    unanswered: float = 0.5
    form: str = ""
    effort: RewardSlot = ""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or self.length < 0 or self.unanswered < 0:
            raise ValueError(
                f"alpha={self.alpha} must be in [0, 1], length={self.length} and "
                f"unanswered={self.unanswered} not negative"
            )

    def base(self, rollout: Rollout) -> float:
        """b, without the judge's part."""
        missing = bool(self.form) and not re.search(self.form, rollout.text)
        return rollout.reward - self.unanswered * missing - self.length / max(1, rollout.sampled_tokens)

    def __call__(self, group: Group) -> list[float]:
        if not self.effort:
            return [self.base(rollout) for rollout in group]
        return [
            self.alpha * self.base(rollout) + (1 - self.alpha) * rollout.rewards.get(self.effort, 0.5)
            for rollout in group
        ]
