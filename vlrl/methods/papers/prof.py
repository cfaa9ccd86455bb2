"""PROF: rollouts whose process disagrees with their outcome are left out; the process scores never enter the
objective.

`prof` reads STEP_SCORES (a process reward model, `pure.process_rewards`).
Paper: Ye et al. 2025 (PROF), arXiv:2509.03403.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

        keep k+ of the n+ correct and k- of the n- wrong, k+ + k- = keep, |k+ - k-| as small as n+, n- allow

    `filter_wrong` false drops wrong rollouts in their order, not by score (the authors' Filter-Correct, for
    process models out of their domain). The others are left out of the loss and of the statistics.
    Paper: Ye et al. 2025 (PROF), arXiv:2509.03403, algorithm 1 (as in published notes; the repository has no
    code yet). Edge: a group of at most `keep` rollouts is trained on whole; one side fills what the other
    lacks.
    """

    keep: int = 4
    filter_wrong: bool = True
    requires = (STEP_SCORES,)

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(f"keep={self.keep} must be 2 or more")

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
        if len(group) <= self.keep:
            return list(range(len(group)))
        right = [place for place, rollout in enumerate(group) if rollout.correct]
        wrong = [place for place, rollout in enumerate(group) if not rollout.correct]
        of_wrong = min(len(wrong), max(self.keep // 2, self.keep - len(right)))
        best = ranked(group, right, consistency)[: self.keep - of_wrong]
        order = ranked(group, wrong, consistency) if self.filter_wrong else wrong
        return sorted([*best, *order[:of_wrong]])


def consistency(rollout: Rollout) -> float:
    """How far the steps agree with the outcome: their mean score, with the other sign where it is wrong."""
    score = mean_step_score(rollout)
    return score if rollout.correct else -score


def ranked(group: Group, places: Sequence[int], by: Callable[[Rollout], float]) -> list[int]:
    """The places with the most consistent rollouts first; equal ones in their order."""
    return sorted(places, key=lambda place: -by(group.rollouts[place]))
