"""A reward without bounds, as preference over a reference answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), for any x."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


FORMS: dict[str, Callable[[float], float]] = {"sigmoid": sigmoid, "tanh": math.tanh, "centred": lambda x: x}


@register("par")
@dataclass(frozen=True)
class Par(ReadsAccuracy, RewardShaping):
    """total + w (f - s),  f = mean over references of sigma(k (s - s_ref)), s the raw score of `slot`, w its weight in the total.

    `slot`: empty: the first reward with a weight.  form "tanh": tanh(k (s - s_ref)); "centred": k (s - s_ref).
    References: `row.meta[key]` (a score or a list of them), else the score that the slot's own reward gives to `row.target`, the demonstration.
    Paper: Fu et al. 2025 (PAR), arXiv:2502.18770 (preference as reward: bounded, centred, steep at first); forms of the released code, k its
    `sigmoid_k`. Edge: a row with neither reference raises ValueError; a remote reward needs scores in `row.meta`.
    """

    form: Literal["sigmoid", "tanh", "centred"] = "sigmoid"
    k: float = 1.0
    key: str = "reference_rewards"
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)
    known: dict[str, list[float]] = field(init=False, default_factory=dict, repr=False, compare=False)
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        self.check_slot(run)

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self.held["reward"] = run.rewards[self.seen["slot"]]

    def __call__(self, group: Group) -> list[float]:
        references, shape, weight = self.references(group), FORMS[self.form], self.held["reward"].weight
        shaped = []
        for rollout in group:
            score = self.accuracy(rollout)
            preferred = sum(shape(self.k * (score - reference)) for reference in references) / len(references)
            shaped.append(rollout.reward + weight * (preferred - score))
        return shaped

    def references(self, group: Group) -> list[float]:
        """The scores of the row's reference answers."""
        row = group.row
        given = row.meta.get(self.key)
        if given is not None:
            return [float(value) for value in (given if isinstance(given, (list, tuple)) else [given])]
        if row.id not in self.known:
            score = self.held["reward"](replace(group.rollouts[0], text=row.target, rewards={}, info={})) if row.target else None
            if not isinstance(score, (int, float)):
                raise ValueError(f"row {row.id!r}: no reference to prefer; give meta[{self.key!r}], or a target (and a reward that is not remote)")
            self.known[row.id] = [float(score)]
        return self.known[row.id]
