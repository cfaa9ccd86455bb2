"""Rewards from what the rollouts agree on, without a gold answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.parsing import last_answer
from vlrl_rewards.text import folded


def majority(answers: Sequence[str]) -> str:
    """The most frequent answer that says something (the first of several); "" if there is none."""
    counts = Counter(answer for answer in answers if answer)
    return counts.most_common(1)[0][0] if counts else ""


@register("cross_vote")
@dataclass(frozen=True, kw_only=True)
class CrossVote(Reward):
    """r = 1 if a rollout's answer is the majority answer of the other view of its question, else 0; `info["paraphrased"]` tells the views apart.

    Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410; votes and cross-assignment as in the released code. Deviates: answers are compared after
    folding case, articles and punctuation, in any of the forms that the verifiers read, not in boxes only.
    Edge: no answer: 0; a view without any answer pays nobody. No gold answer is read: views that agree on a wrong answer are paid, so watch the
    accuracy of held-out rows. Range: 0 or 1.
    """

    reads_answer: ClassVar[bool] = False

    def __call__(self, rollout: Rollout) -> float:
        return 0.0

    def score(self, group: Group) -> list[float]:
        answers = [folded(last_answer(rollout.text)[:2000]) for rollout in group]
        turned = [bool(rollout.info.get("paraphrased")) for rollout in group]
        votes = {side: majority([a for a, t in zip(answers, turned, strict=True) if t is side]) for side in (False, True)}
        return [float(answer != "" and answer == votes[not side]) for answer, side in zip(answers, turned, strict=True)]
