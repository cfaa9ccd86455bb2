"""Combined rewards: sums, products, gates, ranks, normalised sums, calibration. The raw parts are in the
annotation PARTS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.nested import (
    build_parts,
    check_correct_at,
    note,
    note_correct,
    noted_correct,
    number,
    numbers,
)
from vlrl_rewards.format.structure import probability
from vlrl_rewards.parsing import strip_thinking


@dataclass(frozen=True, kw_only=True)
class Combined(Reward):
    """Base of combined rewards: a named map of rewards, in order of importance.

    A rollout is correct where its answer part is correct: the first part with a weight above 0 that reads the
    answer, else the first part. The combined score does not decide it, so neither format nor length nor rank
    does. `correct_at` is that part's own.
    """

    parts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.built  # built now, so that a wrong config is refused at once
        check_correct_at(self)

    @cached_property
    def answer_part(self) -> str:
        """The part that decides whether a rollout is correct."""
        return sorted(
            self.built, key=lambda slot: (self.built[slot].weight <= 0, not self.built[slot].reads_answer)
        )[0]

    def correct(self, rollout: Rollout, score: float) -> bool:
        """What the answer part says."""
        return noted_correct(self, rollout)

    def note_answer(self, rollout: Rollout, value: float) -> bool:
        """Record, and return, whether the rollout is correct, from the answer part's score."""
        return note_correct(self, rollout, self.built[self.answer_part].correct(rollout, value))

    @cached_property
    def built(self) -> dict[str, Reward]:
        """The rewards that `parts` configures."""
        return build_parts(self.parts, f"{self.name}.parts")

    @property
    def inner_rewards(self) -> tuple[Reward, ...]:
        return tuple(self.built.values())

    def values(self, rollout: Rollout) -> dict[str, float]:
        """The score of every part, recorded in the rollout."""
        found = {slot: number(reward, rollout) for slot, reward in self.built.items()}
        for slot, value in found.items():
            note(rollout, slot, value)
        self.note_answer(rollout, found[self.answer_part])
        return found


@register("weighted_sum")
@dataclass(frozen=True, kw_only=True)
class WeightedSum(Combined):
    """Weighted sum of rewards.

        r = sum_k w_k r_k
        r = sum_k w_k r_k / sum_k |w_k|   (with `average`)

    w_k is each part's own `weight`.
    Paper: DeepSeek-R1, arXiv:2501.12948, sec. 2.2.2 (accuracy plus format). Edge: zero weights with `average`
    raise ValueError.
    """

    average: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average and not sum(abs(part.weight) for part in self.built.values()):
            raise ValueError("weighted_sum: all weights are zero, so there is no average")

    def __call__(self, rollout: Rollout) -> float:
        found = self.values(rollout)
        total = sum(self.built[slot].weight * value for slot, value in found.items())
        return total / sum(abs(part.weight) for part in self.built.values()) if self.average else total


@register("product")
@dataclass(frozen=True, kw_only=True)
class ProductReward(Combined):
    """Product of rewards.

        r = prod_k max(0, r_k)

    The maximum keeps two negative parts from giving a positive product.
    Paper: VerIF, arXiv:2506.09942 (hard times soft score). Edge: a part of 0 gives 0.
    """

    def __call__(self, rollout: Rollout) -> float:
        return math.prod(max(0.0, value) for value in self.values(rollout).values())


@register("gated")
@dataclass(frozen=True, kw_only=True)
class Gated(Combined):
    """A reward behind gates: accuracy only if the format is correct.

        r = r_last      if every part before it is correct (its `correct_at`)
        r = otherwise   else

    Paper: Med-RLVR, arXiv:2502.19655 (a penalty for broken format); MT-R1-Zero, arXiv:2504.10160. Parts are
    evaluated in order; those behind a closed gate are neither evaluated nor recorded. A rollout is correct
    where all gates are open and the last part is correct.
    """

    otherwise: float = 0.0

    def __call__(self, rollout: Rollout) -> float:
        *gates, (last, reward) = self.built.items()
        for slot, gate in gates:
            value = number(gate, rollout)
            note(rollout, slot, value)
            if not gate.correct(rollout, value):
                note_correct(self, rollout, False)
                return self.otherwise
        value = number(reward, rollout)
        note(rollout, last, value)
        note_correct(self, rollout, reward.correct(rollout, value))
        return value


@register("lexicographic")
@dataclass(frozen=True, kw_only=True)
class Lexicographic(Combined):
    """Rank of a rollout in its group by rewards in order of importance.

        r_i = share of the other rollouts that i beats; a tie counts one half

    Parts are compared in order; differences up to `margin` are ties.
    Paper: HERON, arXiv:2309.02632 (decision tree over ranked signals; pairwise wins instead of a trained
    reward model). r_i = share of siblings beaten; a tie counts one half. Edge: a group of one rollout: 0.5.
    """

    margin: float = 0.0

    def __call__(self, rollout: Rollout) -> float:
        self.values(rollout)
        return 0.5

    def score_group(self, group: Group) -> list[float]:
        columns = [numbers(reward, group) for reward in self.built.values()]
        for slot, column in zip(self.built, columns, strict=True):
            for rollout, value in zip(group, column, strict=True):
                note(rollout, slot, value)
                if slot == self.answer_part:
                    self.note_answer(rollout, value)
        rows = list(zip(*columns, strict=True))
        others = max(1, len(rows) - 1)
        if len(rows) < 2:
            return [0.5] * len(rows)
        return [
            sum(self._wins(a, b) for j, b in enumerate(rows) if i != j) / others for i, a in enumerate(rows)
        ]

    def _wins(self, a: tuple[float, ...], b: tuple[float, ...]) -> float:
        for x, y in zip(a, b, strict=True):
            if abs(x - y) > self.margin:
                return float(x > y)
        return 0.5


@register("normalised_sum")
@dataclass(frozen=True, kw_only=True)
class NormalisedSum(Combined):
    """Sum of group-normalised rewards: every reward contributes equally, whatever its scale.

        r_i = sum_k w_k (r_ik - mean_k) / (std_k + eps)

    Paper: GDPO, arXiv:2601.05242 (normalise each reward in the group, then sum). Population standard
    deviation. Deviations: the batch-wide normalisation that follows belongs to the advantage. Edge: a part
    that is equal for all rollouts of the group adds 0.
    """

    eps: float = 1e-4

    def __call__(self, rollout: Rollout) -> float:
        self.values(rollout)
        return 0.0

    def score_group(self, group: Group) -> list[float]:
        totals = [0.0] * len(group)
        for slot, reward in self.built.items():
            column = numbers(reward, group)
            mean = math.fsum(column) / len(column)
            spread = math.sqrt(math.fsum((value - mean) ** 2 for value in column) / len(column))
            for i, (rollout, value) in enumerate(zip(group, column, strict=True)):
                note(rollout, slot, value)
                if slot == self.answer_part:
                    self.note_answer(rollout, value)
                totals[i] += reward.weight * (value - mean) / (spread + self.eps) if spread > 0 else 0.0
        return totals


@register("calibrated")
@dataclass(frozen=True, kw_only=True)
class Calibrated(Combined):
    """RLCR: correctness plus Brier score of the stated confidence.

        r = c - (q - c)^2

    c = 1 if every part is correct (its `correct_at`), else 0; q is the confidence in [0, 1] in `<confidence>`
    tags.
    Paper: RLCR, arXiv:2507.16806 (correctness plus Brier score). Edge: no confidence, several, or one outside
    [0, 1]: -1, the lowest. A rollout is correct where c = 1, whatever its confidence.
    """

    def __call__(self, rollout: Rollout) -> float:
        values = self.values(rollout)
        correct = float(
            note_correct(
                self, rollout, all(part.correct(rollout, values[slot]) for slot, part in self.built.items())
            )
        )
        blocks = strip_thinking(rollout.text).split("<confidence>")
        stated = (
            probability(blocks[1].partition("</confidence>")[0])
            if len(blocks) == 2 and "</confidence>" in blocks[1]
            else None
        )
        return -1.0 if stated is None else correct - (stated - correct) ** 2
