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

CHARACTERS = 4  # of a token, as the release counts


@register("rlsp")
@dataclass(frozen=True)
class Rlsp(RewardShaping):
    """RLSP's exploration rewards: b = r - length / n, or -unanswered - length / n without an answer in the
    form; with a judge of the effort alpha b + (1 - alpha) e.

    n is a quarter of the number of characters before the answer, of all without one, so that `length` pays
    for longer reasoning, the less the longer it is already. Released code: GuanghaoYe/Emergence-of-Thinking
    e7feea7d, openrlhf/cli/orm_server_efficient.py (alpha 0.8, length 20, -0.5 without a box) and
    gpt_reward.py (the judge's instructions). Edge: e is 0.5 where the judge gives no score; 0 in all where
    nothing stands before the answer.

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

    def shaped(self, rollout: Rollout) -> float:
        """The reward of a rollout."""
        text = rollout.text.strip()
        answer = re.search(self.form, text) if self.form else None
        reasoning = text[: answer.start()] if answer is not None else text
        if self.length and not reasoning:
            return 0.0
        missing = bool(self.form) and answer is None
        base = -self.unanswered if missing else rollout.reward
        base -= self.length * CHARACTERS / max(1, len(reasoning))
        if not self.effort:
            return base
        return self.alpha * base + (1 - self.alpha) * rollout.rewards.get(self.effort, 0.5)

    def __call__(self, group: Group) -> list[float]:
        return [self.shaped(rollout) for rollout in group]
