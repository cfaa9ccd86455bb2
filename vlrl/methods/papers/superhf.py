"""Only the best of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import ReplayBuffer
from vlrl.types import Group


@register("superhf")
@dataclass(frozen=True)
class Superhf(ReplayBuffer):
    """The `keep` rollouts of highest reward of each group; the others are set aside. With surrogate `none` and term `nll`: filtered imitation.

    Paper: Mukobi et al. 2023 (SuperHF), arXiv:2310.16763, algorithm 1; checked against filtering.py of the release (top k by score; k = 1 of a
    superbatch of completions of one prompt). Edge: of equal rewards the earlier rollout stays; `least` drops groups whose best is not above it.
    """

    keep: int = 1
    least: float = float("-inf")

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep={self.keep} must be at least 1")

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        out = []
        for group in groups:
            order = sorted(group, key=lambda rollout: -rollout.reward)
            chosen = {id(rollout) for rollout in order[: self.keep] if rollout.reward > self.least}
            best = [rollout for rollout in group if id(rollout) in chosen]
            rest = [rollout for rollout in group if id(rollout) not in chosen]
            if best:  # a group of its own: what was sampled is still counted as it was
                out.append(Group(group.prompt, best, group.id, dict(group.info), [*group.untrained, *rest]))
        return out
