"""PAR: preference as reward; an unbounded score becomes the probability that the answer is preferred over a
reference answer.

`par` is a reward shaping for scores of a reward model or a judge: bounded, centred, and steep at first.

Paper: Fu et al. 2025 (PAR), arXiv:2502.18770, with released code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.types import Group


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), for any x."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


FORMS: dict[str, Callable[[float], float]] = {"sigmoid": sigmoid, "tanh": math.tanh, "centred": lambda x: x}


@dataclass
class ParState(State):
    """Scores of demonstrations by row id, so that each is scored once."""

    reference_scores: dict[str, list[float]] = transient(factory=dict)


@register("par")
@dataclass(frozen=True)
class Par(RewardShaping):
    """PAR: replaces a raw score s in the total reward by its preference f over reference answers.

        total + w (f - s),  f = mean over references of sigmoid(k (s - s_ref))

    s is the raw score of the reward `slot` (empty: the row's outcome), w that reward's weight in the total.
    `form` "tanh": tanh(k (s - s_ref)); "centred": k (s - s_ref). References: `row.meta[key]` (a score or a
    list of them), else the score that the slot's own reward gives to `row.target`, the demonstration.
    Paper: Fu et al. 2025 (PAR), arXiv:2502.18770; forms of the released code, k its `sigmoid_k`. Edge: a row
    with neither reference raises ValueError; a remote reward needs scores in `row.meta`.
    """

    state_class = ParState
    form: Literal["sigmoid", "tanh", "centred"] = "sigmoid"
    k: float = 1.0
    key: str = "reference_rewards"
    slot: RewardSlot = ""

    def check(self, phase: PhaseContext) -> None:
        if self.slot and self.slot not in phase.rewards:
            raise ConfigError(
                f"reward_shaping: 'par' has slot={self.slot!r}, and no reward has that name; known: "
                f"{', '.join(phase.rewards)}"
            )

    def __call__(self, group: Group) -> list[float]:
        slot = self.slot or self.run.outcome_slot(group.row)
        references, shape, weight = (
            self.references(group, slot),
            FORMS[self.form],
            self.run.rewards[slot].weight,
        )
        shaped = []
        for rollout in group:
            score = rollout.rewards[slot]
            preference = sum(shape(self.k * (score - reference)) for reference in references) / len(
                references
            )
            shaped.append(rollout.reward + weight * (preference - score))
        return shaped

    def references(self, group: Group, slot: str) -> list[float]:
        """The scores of the row's reference answers."""
        row, known = group.row, self.state.reference_scores
        given = row.meta.get(self.key)
        if given is not None:
            return [float(value) for value in (given if isinstance(given, (list, tuple)) else [given])]
        if row.id not in known:
            score = (
                self.run.rewards[slot](replace(group.rollouts[0], text=row.target, rewards={}, info={}))
                if row.target
                else None
            )
            if not isinstance(score, (int, float)):
                raise ValueError(
                    f"row {row.id!r}: 'par' has no reference answer; give meta[{self.key!r}], or a target "
                    "(and a reward that is not remote)"
                )
            known[row.id] = [float(score)]
        return known[row.id]
