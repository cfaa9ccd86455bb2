"""Two views of a question, each compared within itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.advantage.grpo import GRPO
from vlrl.registry import register
from vlrl.types import Group


@register("co_reward")
@dataclass(frozen=True)
class ByView(GRPO):
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
