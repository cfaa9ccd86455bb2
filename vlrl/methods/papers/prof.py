"""PROF: rollouts whose process disagrees with their outcome are left out; the process scores never enter the
objective.

`prof` reads STEP_SCORES (a process reward model, `pure.process_rewards`).
Paper: Ye et al. 2025 (PROF), arXiv:2509.03403; checked against amazon-science/PROF-GRPO @ 8164ec2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.step_scores import STEP_SCORES, mean_step_score
from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.registry import register
from vlrl.types import Group, Rollout


@register("prof")
@dataclass(frozen=True)
class Prof(GRPO):
    """PROF: GRPO on `keep` rollouts of each group, the correct ones with the highest and the wrong ones with
    the lowest mean step score.

        d = n - keep are dropped: d+ = round((n+ - n- + d) / 2) of the n+ correct, within 0 and both d and n+,
        and d - d+ of the n- wrong, so that as many right as wrong ones stay, as far as n+ and n- allow

    A rollout of fewer than `steps[0]` or more than `steps[1]` steps is dropped before those of its side.
    `filter_wrong` false drops wrong rollouts in their order, not by score (the release's Filter-Correct, for
    process models out of their domain). Dropped rollouts are left out of the loss and of the statistics.
    Paper: Ye et al. 2025 (PROF), arXiv:2509.03403, algorithm 1; amazon-science/PROF-GRPO @ 8164ec2,
    prof_ray_trainer.py:1377-1518. Edge: halves round to even; a group of at most `keep` is trained on whole.
    """

    keep: int = 4
    filter_wrong: bool = True
    steps: tuple[int, int] = (2, 30)
    requires = (STEP_SCORES,)

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(f"keep={self.keep} must be 2 or more")
        if not 0 <= self.steps[0] <= self.steps[1]:
            raise ValueError(f"steps={list(self.steps)}: expected the fewest and the most, such as [2, 30]")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        chosen = [self.kept(group) for group in groups]
        parts = [Group(g.prompt, [g.rollouts[i] for i in kept], g.id) for g, kept in zip(groups, chosen)]
        result = []
        for group, kept, advantages in zip(groups, chosen, super().__call__(parts), strict=True):
            own = dict(zip(kept, advantages, strict=True))
            for place, rollout in enumerate(group):
                if place not in own:
                    rollout.leave_out([False] * len(rollout))
            result.append([own.get(place, 0.0) for place in range(len(group))])
        return result

    def kept(self, group: Group) -> list[int]:
        """The places of the rollouts that are trained on."""
        drop = max(0, len(group) - self.keep)
        right = [place for place, rollout in enumerate(group) if rollout.correct]
        wrong = [place for place, rollout in enumerate(group) if not rollout.correct]
        balanced = round((len(right) - len(wrong) + drop) / 2)
        of_right = min(max(balanced, 0), drop, len(right))
        if self.filter_wrong:
            wrong = self.ranked(group, wrong)
        return sorted(
            [
                *self.ranked(group, right)[: len(right) - of_right],
                *wrong[: len(wrong) - (drop - of_right)],
            ]
        )

    def ranked(self, group: Group, places: Sequence[int]) -> list[int]:
        """The places, the most consistent rollouts first and those with too few or too many steps last; equal
        ones in their order."""

        def key(place: int) -> tuple[bool, float]:
            rollout = group.rollouts[place]
            few, most = self.steps
            return not few <= len(STEP_SCORES.get(rollout, [])) <= most, -consistency(rollout)

        return sorted(places, key=key)


def consistency(rollout: Rollout) -> float:
    """How far the steps agree with the outcome: their mean score, with the other sign where it is wrong."""
    score = mean_step_score(rollout)
    return score if rollout.correct else -score
