"""Each question and its paraphrase, so that they can vote for each other.

Two views of a question, each compared within itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vlrl.methods.common.two_views import SecondView
from vlrl.methods.core.advantage import GRPO
from vlrl.registry import register
from vlrl.types import Group, Row


@register("co_reward")
@dataclass(frozen=True)
class CoReward(SecondView):
    """G rollouts of every prompt, and G more of its paraphrase `row.meta[key]`, in the same group of 2 G; these carry `info["paraphrased"]`.

    Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410: two groups, as in the released code; advantage `co_reward` keeps them apart.
    Edge: a row without a paraphrase is asked twice as it is: its two halves vote for each other.
    """

    mark: ClassVar[str] = "paraphrased"
    key: str = "paraphrase"

    def view(self, row: Row) -> Row:
        return replace(row, id=f"{row.id}/paraphrased", question=str(row.meta.get(self.key, row.question)))


@register("co_reward.per_view")
@dataclass(frozen=True)
class CoRewardPerView(GRPO):
    """GRPO within the rollouts of the question and within those of its paraphrase (`info["paraphrased"]`, strategy `co_reward`).

    Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410 (GRPO on both groups). Edge: a group of one view is GRPO's.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        views = [[[r for r in group if bool(r.info.get("paraphrased")) is side] for side in (False, True)] for group in groups]
        flat = super().__call__([Group(group.prompt, view) for group, pair in zip(groups, views) for view in pair])
        out = []
        for index, group in enumerate(groups):
            plain, turned = (iter(values) for values in flat[2 * index : 2 * index + 2])
            out.append([next(turned if r.info.get("paraphrased") else plain) for r in group])
        return out
