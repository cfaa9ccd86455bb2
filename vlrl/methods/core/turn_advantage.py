"""Advantage estimators for episodes of several turns: one advantage per turn, written for each of its tokens.

    turn_return   return to go of each turn, minus the mean of the group's at the same turn
    gigpo         GiGPO: the episode's advantage plus that of the step among equal states

Notation: i episode of a group, k turn from 0, K_i turns of episode i, r_{i,k} reward of a turn, R_i reward of
the episode (`Rollout.reward`).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlrl.methods.core.advantage import GroupRelative, set_token_advantages
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import CONVERSATION, TURN_REWARDS, TURN_SPANS, TURN_STATES
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, State, transient
from vlrl.types import Group, Rollout


def episodes_of(group: Group) -> list[list[Rollout]]:
    """The rollouts of a group by episode, in order. A rollout that belongs to no conversation is an episode
    of its own."""
    found: dict[Any, list[Rollout]] = {}
    for place, rollout in enumerate(group):
        found.setdefault(CONVERSATION.get(rollout, f"alone {place}"), []).append(rollout)
    return list(found.values())


def turn_rewards(episode: Sequence[Rollout]) -> list[float]:
    """r_k of an episode: what the environment paid, and at the last turn what is left of the episode's
    reward, so that they sum to R."""
    last = episode[-1]
    paid = list(TURN_REWARDS.get(last) or [0.0])
    paid[-1] += last.reward - sum(paid)
    return paid


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_k = sum over j >= k of gamma^(j - k) r_j.

    >>> returns_to_go([1.0, 0.0, 4.0], 0.5)
    [2.0, 2.0, 4.0]
    """
    total, out = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        out.append(total)
    return out[::-1]


def spread(episode: Sequence[Rollout], advantages: Sequence[float]) -> Iterator[list[float]]:
    """One row of numbers per rollout: the advantage of a turn on each of its tokens, 0 on those of
    observations."""
    for rollout in episode:
        row = [0.0] * len(rollout)
        for turn, start, end in TURN_SPANS.get(rollout) or [[0, 0, len(rollout)]]:
            row[start:end] = [advantages[min(turn, len(advantages) - 1)]] * (end - start)
        yield row


@dataclass(frozen=True)
class TurnEstimator(GroupRelative):
    """Base of the estimators with one advantage per turn."""

    gamma: float = 1.0
    provides = (TOKEN_ADVANTAGES,)
    requires: ClassVar[tuple[Capability, ...]] = (TURN_REWARDS, TURN_SPANS)

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma} must be above 0 and at most 1")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def written(
        self, groups: Sequence[Group], per_turn: Sequence[Sequence[Sequence[float]]]
    ) -> list[list[float]]:
        """Write TOKEN_ADVANTAGES from advantages per group, episode and turn."""
        rows: dict[int, list[float]] = {}
        for group, of_group in zip(groups, per_turn, strict=True):
            for episode, advantages in zip(episodes_of(group), of_group, strict=True):
                rows |= {
                    id(rollout): row
                    for rollout, row in zip(episode, spread(episode, advantages), strict=True)
                }
        return set_token_advantages(groups, [rows[id(rollout)] for group in groups for rollout in group])


@register("turn_return")
@dataclass(frozen=True)
class TurnReturn(TurnEstimator):
    """Return to go per turn with a group baseline: A_{i,k} = (G_{i,k} - mean_j G_{j,k}) / (std_j G_{j,0} +
    eps).

        G_{i,k} = sum over l >= k of gamma^(l - k) r_{i,l}, 0 for k >= K_i

    r are the environment's rewards per turn; what is left of the rollout's reward (format, answer) is paid at
    the last turn, so that G_{i,0} is the reward of the episode for gamma 1. An episode that has ended counts
    as 0 in the mean: a baseline over those that go on alone would pay for every further turn (verl issue
    7244). vlrl original; with one turn it is GRPO. `scale` "none" does not divide.
    Edge: a group of one episode, or of equal returns, gives zeros. Shapes: TOKEN_ADVANTAGES, one number per
    token of a rollout.
    """

    scale: Literal["group", "none"] = "group"
    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return self.written(
            groups,
            [
                self.of_group(
                    [returns_to_go(turn_rewards(episode), self.gamma) for episode in episodes_of(g)]
                )
                for g in groups
            ],
        )

    def of_group(self, returns: Sequence[Sequence[float]]) -> list[list[float]]:
        """Advantages per episode and turn from the returns to go of a group."""
        turns = max(map(len, returns), default=0)
        means = [sum(row[k] if k < len(row) else 0.0 for row in returns) / len(returns) for k in range(turns)]
        if len(returns) < 2:
            return [[0.0] * len(row) for row in returns]
        std = statistics.stdev([row[0] for row in returns]) + self.eps if self.scale == "group" else 1.0
        return [[(value - mean) / std for value, mean in zip(row, means)] for row in returns]


@dataclass
class GiGPOState(State):
    """Of the present step: turns, and the groups of equal states that they belong to."""

    turns: int = transient(0)
    states: int = transient(0)


@register("gigpo")
@dataclass(frozen=True)
class GiGPO(TurnEstimator):
    """GiGPO's group-in-group advantage: A_{i,k} = A_E(i) + weight * A_S(i, k).

        A_E(i) = R_i - mean_j R_j                                      over the episodes of a prompt
        A_S(i, k) = G_{i,k} - mean of G over the turns of the group that were written in the same state

    G is the return to go discounted by `gamma`; states are equal where the environment says so (TURN_STATES).
    `scale` "group" divides both by their std + 1e-6. Paper: Feng et al. 2025 (GiGPO), arXiv:2505.10978, eq.
    3-8; released code: verl-agent, gigpo/core_gigpo.py (read in the copy of langfengQ/DrMAS), whose defaults
    these are. Edge, as there: a state seen once gives A_S = 0, an episode alone in its group A_E = R. Not
    taken over: fuzzy states; the penalty for invalid actions is a reward of the environment. Logs the mean
    size of a group of states: near 1, A_S says nothing.
    """

    state_class = GiGPOState
    gamma: float = 0.95
    weight: float = 1.0
    scale: Literal["group", "none"] = "none"
    eps: float = 1e-6
    requires = (TURN_REWARDS, TURN_SPANS, TURN_STATES)

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        return {"gigpo/state_group_size": (float(self.state.turns), float(self.state.states))}

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        self.state.turns = self.state.states = 0
        return self.written(groups, [self.of_group(group) for group in groups])

    def of_group(self, group: Group) -> list[list[float]]:
        """Advantages per episode and turn."""
        episodes = episodes_of(group)
        totals = [episode[-1].reward for episode in episodes]
        whole = self.compared(totals) if len(totals) > 1 else totals
        returns = [returns_to_go(turn_rewards(episode), self.gamma) for episode in episodes]
        places: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for i, (episode, row) in enumerate(zip(episodes, returns, strict=True)):
            keys = TURN_STATES.get(episode[-1]) or []
            for k in range(len(row)):
                places[keys[k] if k < len(keys) else (i, k)].append((i, k))
        steps = [[0.0] * len(row) for row in returns]
        for members in places.values():
            self.state.turns += len(members)
            self.state.states += 1
            values = self.compared([returns[i][k] for i, k in members]) if len(members) > 1 else [0.0]
            for (i, k), value in zip(members, values, strict=True):
                steps[i][k] = value
        return [
            [episode + self.weight * step for step in row] for episode, row in zip(whole, steps, strict=True)
        ]

    def compared(self, values: Sequence[float]) -> list[float]:
        """The values minus their mean, perhaps over their std."""
        mean = sum(values) / len(values)
        std = statistics.stdev(values) + self.eps if self.scale == "group" else 1.0
        return [(value - mean) / std for value in values]
