"""Prompts of uncertain outcome are kept and come again in place of those that teach nothing now.

Groups whose outcome was uncertain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.correctness import accuracies, slots_of
from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.stages import GroupFilter
from vlrl.types import FilterDecision, Group, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


def uncertainty(rewards: Sequence[float]) -> float:
    """p = s^2 / s_max^2 in [0, 1]: the unbiased variance of n rewards in [0, 1] over the largest there is (half of them right).

    Of 0/1 rewards with k right this is k (n - k) / (floor(n / 2) ceil(n / 2)). Edge: fewer than two rewards: 0.
    """
    n = len(rewards)
    if n < 2:
        return 0.0
    mean = sum(rewards) / n
    return sum((r - mean) ** 2 for r in rewards) * n / ((n // 2) * (n - n // 2))


@register("vcrl")
@dataclass(frozen=True)
class Vcrl(Shuffle):
    """A step's first rows are those of `shuffle`; its refills, for groups that gate `variance` refused, are the bank's rows of highest priority P.

    After a step, for each of its groups with p as in gate `variance`: P <- momentum P + (1 - momentum) p for rows of the bank, which leave it with
    P < least; other rows with p >= least enter with P = p. At most `room` rows; the lowest P leaves. A row comes once a step.
    Paper: Jiang et al. 2025 (VCRL), arXiv:2509.19803: variance-based sampling and a memory bank with momentum priorities. No released code was found;
    `momentum`, `room` and what removes a row are ours. Where the bank is empty, refills are the next rows. All ranks learn from all groups.
    State: the bank (row id, place, P) and the position.
    """

    least: float = 0.3
    momentum: float = 0.9
    room: int = 1024
    slot: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1 or self.room < 1 or not 0 < self.least <= 1:
            raise ConfigError(
                f"prompt_sampler: momentum={self.momentum} must be in [0, 1), room={self.room} at least 1 and least={self.least} in (0, 1]"
            )

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self._state.setdefault("bank", {})
        self._state.update(served={}, begun=False, slots=slots_of(run))

    def __call__(self, n: int) -> list[Row]:
        state = self._state
        rows = []
        if state["begun"]:
            best = sorted((key for key in state["bank"] if key not in state["served"]), key=lambda key: (-state["bank"][key]["p"], key))
            for key in best[:n]:
                rows.append(state["mixture"].row(state["bank"][key]["position"]))
                state["served"][key] = state["bank"][key]["position"]
        state["begun"] = True
        return rows + super().__call__(n - len(rows))

    def _try(self, position: int) -> Row | None:
        row = super()._try(position)
        if row is not None:
            self._state["served"][row.id] = position
        return row

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        bank, served = self._state["bank"], self._state["served"]
        for group in groups:
            key = group.row.id
            if key not in served or not len(group):
                continue
            p = uncertainty(accuracies(group, self.slot, self._state["slots"]))
            new = self.momentum * bank[key]["p"] + (1 - self.momentum) * p if key in bank else p
            bank[key] = {"p": new, "position": served[key]}
            if new < self.least:
                del bank[key]
        for key in sorted(bank, key=lambda key: (-bank[key]["p"], key))[self.room :]:
            del bank[key]
        served.clear()
        self._state["begun"] = False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "bank": {key: dict(entry) for key, entry in self._state.get("bank", {}).items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._state["bank"] = {key: dict(entry) for key, entry in state["bank"].items()}

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "data/bank": float(len(self._state["bank"]))}


@register("vcrl.variance_filter")
@dataclass(frozen=True)
class VcrlVarianceFilter(GroupFilter):
    """Keeps a group with p >= least, p = s^2 / s_max^2: the variance of its rewards over the largest that so many rewards in [0, 1] can have.

    Of 0/1 rewards with k of G right: p = k (G - k) / (floor(G/2) ceil(G/2)), 1 where half are right.
    Paper: Jiang et al. 2025 (VCRL), arXiv:2509.19803, variance-based dynamic sampling (kappa is `least`). `slot` is the accuracy (empty: the first
    reward with a weight that scored the group). Edge: a group of one is never kept. Raises KeyError if `slot` did not score the rollouts.
    """

    least: float = 0.3
    slot: str = ""
    slots: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ConfigError(f"group_filters: variance needs least in (0, 1], got {self.least}")

    def setup(self, run: RunContext) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, group: Group) -> FilterDecision:
        return FilterDecision(True) if uncertainty(accuracies(group, self.slot, self.slots)) >= self.least else FilterDecision(False, "too certain")
