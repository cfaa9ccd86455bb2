"""Co-Reward: a question and its paraphrase label each other with their majority answers; no gold answer is
used.

`co_reward` is the rollout strategy that samples both views, `co_reward.per_view` the advantage estimator that
keeps them apart; the reward is `cross_vote`.

Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410: two groups, as in the released code, and GRPO on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vlrl.methods.common.two_views import TwoViews
from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.types import Group, Row

PARAPHRASED: Annotation[bool] = Annotation(
    "paraphrased", bool, hint="rollout: {name: co_reward}", doc="whether the rollout answers the paraphrase"
)


@register("co_reward")
@dataclass(frozen=True)
class CoReward(TwoViews):
    """Co-Reward's two views: G rollouts of every prompt, and G more of its paraphrase `row.meta[key]`, in one
    group of 2 G.

    Rollouts of the paraphrase have the annotation PARAPHRASED. Edge: a row without a paraphrase is sampled
    twice as it is: its two halves vote for each other.
    """

    mark: ClassVar[Annotation[bool]] = PARAPHRASED
    key: str = "paraphrase"
    provides = (PARAPHRASED,)

    def view(self, row: Row) -> Row:
        return replace(row, id=f"{row.id}/paraphrased", question=str(row.meta.get(self.key, row.question)))


@register("co_reward.per_view")
@dataclass(frozen=True)
class CoRewardPerView(GRPO):
    """Co-Reward's advantage: GRPO within the rollouts of the question, and within those of its paraphrase.

    Edge: a group of one view is GRPO's.
    """

    requires = (PARAPHRASED,)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        views = [
            [[r for r in group if bool(PARAPHRASED.get(r)) is side] for side in (False, True)]
            for group in groups
        ]
        flat = super().__call__(
            [Group(group.prompt, view) for group, pair in zip(groups, views) for view in pair]
        )
        out = []
        for index, group in enumerate(groups):
            original, paraphrased = (iter(values) for values in flat[2 * index : 2 * index + 2])
            out.append([next(paraphrased if PARAPHRASED.get(r) else original) for r in group])
        return out
