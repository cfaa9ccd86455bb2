"""SuperHF: supervised iterative learning from human feedback, imitation of the best completions of each
prompt, near the initial model.

`superhf` is a replay buffer that keeps the best rollouts. With policy_loss `zero_loss` and loss term `nll` it
is filtered imitation. Paper: Mukobi et al. 2023 (SuperHF), arXiv:2310.16763, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import ReplayBuffer
from vlrl.types import Group


@register("superhf")
@dataclass(frozen=True)
class Superhf(ReplayBuffer):
    """SuperHF's filter: the `keep` rollouts of highest reward of each group stay, if their reward is above
    `reward_above`.

    A rollout of white space alone never stays. The others are moved to `Group.untrained`; a group without a
    remaining rollout is dropped. Paper: Mukobi et al. 2023 (SuperHF), arXiv:2310.16763, algorithm 1; checked
    against filtering.py and training.py:733-743 of the release (top k by score of a prompt's completions that
    are not empty). Edge: of equal rewards the earlier rollout stays.
    """

    keep: int = 1
    reward_above: float = float("-inf")

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep={self.keep} must be at least 1")

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        out = []
        for group in groups:
            order = sorted((r for r in group if r.text.strip()), key=lambda rollout: -rollout.reward)
            chosen = {id(rollout) for rollout in order[: self.keep] if rollout.reward > self.reward_above}
            best = [rollout for rollout in group if id(rollout) in chosen]
            rest = [rollout for rollout in group if id(rollout) not in chosen]
            if best:  # a new group, so that the metrics of the sampled group stay as they are
                out.append(Group(group.prompt, best, group.id, dict(group.info), [*group.untrained, *rest]))
        return out
