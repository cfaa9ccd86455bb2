"""VCRL: variance-based curriculum reinforcement learning, prompts whose rewards vary, and a memory bank of
prompts whose rewards varied before.

    vcrl                   prompt sampler: replaces filtered prompts by those of the memory bank
    vcrl.variance_filter   group filter: drops groups of low normalised variance

Paper: Jiang et al. 2025 (VCRL), arXiv:2509.19803. No released code was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.core.prompt_sampler import Shuffle, ShuffleState
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import GroupFilter, transient
from vlrl.types import FilterDecision, Group, Row


def normalised_variance(rewards: Sequence[float]) -> float:
    """p = s^2 / s_max^2 in [0, 1]: the unbiased variance of n rewards in [0, 1] over the largest possible one
    (half of them 1).

    For 0/1 rewards with k ones this is k (n - k) / (floor(n / 2) ceil(n / 2)). Edge: fewer than two rewards:
    0.
    """
    n = len(rewards)
    if n < 2:
        return 0.0
    mean = sum(rewards) / n
    return sum((r - mean) ** 2 for r in rewards) * n / ((n // 2) * (n - n // 2))


def outcome_variance(group: Group) -> float:
    """The normalised variance of a group's outcomes."""
    return normalised_variance([rollout.outcome or 0.0 for rollout in group])


@dataclass
class VcrlState(ShuffleState):
    """The position in the data and the memory bank: row id -> {"p": its priority P, "position": that of the
    row}.

    Of the current step: `served` maps the ids of drawn rows to their positions; `refilling` says whether its
    first rows were drawn.
    """

    bank: dict[str, dict[str, Any]] = field(default_factory=dict)
    served: dict[str, int] = transient(factory=dict)
    refilling: bool = transient(False)


@register("vcrl")
@dataclass(frozen=True)
class Vcrl(Shuffle):
    """VCRL's memory bank: the first rows of a step are those of `shuffle`; its refills are the bank's rows of
    highest priority P.

        P <- momentum P + (1 - momentum) p,   p: the normalised variance of the outcomes of a group

    Refills are drawn for groups that a filter such as `vcrl.variance_filter` dropped; a row is drawn once a
    step. Rows with p >= min_variance enter with P = p and leave with P < min_variance. Paper: Jiang et al.
    2025 (VCRL), arXiv:2509.19803: variance-based sampling and a memory bank with momentum priorities. No
    released code was found; `momentum`, `max_rows` (those of the highest P stay) and what removes a row are
    ours. Edge: with an empty bank refills are the next rows. All ranks learn from all groups. State: the bank
    (row id, position, P) and the position.
    """

    state_class = VcrlState
    min_variance: float = 0.3
    momentum: float = 0.9
    max_rows: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1 or self.max_rows < 1 or not 0 < self.min_variance <= 1:
            raise ConfigError(
                f"prompt_sampler: momentum={self.momentum} must be in [0, 1), max_rows={self.max_rows} at "
                "least 1 and "
                f"min_variance={self.min_variance} in (0, 1]"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.served, self.state.refilling = {}, False

    def __call__(self, n: int) -> list[Row]:
        state: VcrlState = self.state
        rows = []
        if state.refilling:
            for key in [key for key in self.by_priority() if key not in state.served][:n]:
                state.served[key] = state.bank[key]["position"]
                rows.append(state.mixture.row(state.served[key]))
        state.refilling = True
        return rows + super().__call__(n - len(rows))

    def usable_row(self, position: int) -> Row | None:
        row = super().usable_row(position)
        if row is not None:
            self.state.served[row.id] = position
        return row

    def by_priority(self) -> list[str]:
        """The row ids of the bank, highest priority first; of equal ones the smaller id first."""
        bank = self.state.bank
        return sorted(bank, key=lambda key: (-bank[key]["p"], key))

    def end_step(self, run: StepContext) -> None:
        state: VcrlState = self.state
        for group in run.answered_groups:
            key = group.row.id
            if key not in state.served or not len(group):
                continue
            p = outcome_variance(group)
            priority = (
                self.momentum * state.bank[key]["p"] + (1 - self.momentum) * p if key in state.bank else p
            )
            state.bank[key] = {"p": priority, "position": state.served[key]}
            if priority < self.min_variance:
                del state.bank[key]
        for key in self.by_priority()[self.max_rows :]:
            del state.bank[key]
        state.served, state.refilling = {}, False

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "data/bank": float(len(self.state.bank))}


@register("vcrl.variance_filter")
@dataclass(frozen=True)
class VcrlVarianceFilter(GroupFilter):
    """VCRL's variance-based dynamic sampling: keeps a group with p = s^2 / s_max^2 >= min_variance.

    s^2 is the variance of the group's outcomes, s_max^2 the largest that as many outcomes in [0, 1] can have.
    For 0/1 outcomes with k of G correct: p = k (G - k) / (floor(G/2) ceil(G/2)), 1 where half are correct.
    Paper: Jiang et al. 2025 (VCRL), arXiv:2509.19803, variance-based dynamic sampling (its kappa is
    `min_variance`). Edge: a group of one rollout is dropped.
    """

    min_variance: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.min_variance <= 1:
            raise ConfigError(
                f"group_filters: 'vcrl.variance_filter' needs min_variance in (0, 1], got {self.min_variance}"
            )

    def __call__(self, group: Group) -> FilterDecision:
        return (
            FilterDecision(True)
            if outcome_variance(group) >= self.min_variance
            else FilterDecision(False, "too certain")
        )
