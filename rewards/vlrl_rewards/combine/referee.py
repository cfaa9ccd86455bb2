"""URPO's rewards: the referee's score of a response, and how far a referee's scores agree with known
ratings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout, Row
from vlrl_rewards.parsing import strip_thinking

REFEREE: Annotation[float] = Annotation(
    "urpo.score", float, hint="rollout: {name: urpo}", doc="the referee's mean score of the response, 0 to 1"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@register("referee_score")
@dataclass(frozen=True, kw_only=True)
class RefereeScore(Reward):
    """URPO's reward of an open response: the score that the policy gives it as referee, 0 to 1.

    Paper: Lu et al. 2025 (URPO), arXiv:2507.17515, sec. 3. Edge: a response that the referee gave no readable
    score has none: it is dropped and counted. Correct from 1/2 on.
    """

    requires = (REFEREE,)
    needs_gold: ClassVar[bool] = False
    correct_at: float = 0.5

    def __call__(self, rollout: Rollout) -> float:
        score = REFEREE.get(rollout)
        if score is None:
            raise NoScore(f"reward {self.name!r}: no reply of the referee could be read")
        return score


@register("score_agreement")
@dataclass(frozen=True, kw_only=True)
class ScoreAgreement(Reward):
    """URPO's reward of a referee: Kendall's tau between its scores and the ratings of the row's responses.

        r = (concordant - discordant) / pairs with different ratings,  -1 where the scores cannot be read

    The scores are the numbers behind "Scores:", which is there once; the ratings are `row.meta[ratings]`.
    Paper: Lu et al. 2025 (URPO), arXiv:2507.17515, sec. 3 (as in published notes). Edge: equal scores of a
    pair are neither; scores in the thinking, or out of `low` to `high`, are -1. -1 to 1; correct at 1.
    """

    ratings: str = "ratings"
    low: float = 1.0
    high: float = 10.0

    def __call__(self, rollout: Rollout) -> float:
        ratings = self.rated(rollout.row)
        _, *written = strip_thinking(rollout.text).split("Scores:")
        scores = [float(number) for number in _NUMBER.findall(written[0])] if len(written) == 1 else []
        inside = all(self.low <= score <= self.high for score in scores)
        return kendall(scores, ratings) if len(scores) == len(ratings) and inside else -1.0

    def rated(self, row: Row) -> list[float]:
        """The ratings of a row. Raises GoldError without two different ones."""
        found = row.meta.get(self.ratings)
        if not isinstance(found, (list, tuple)) or len(set(found)) < 2:
            raise GoldError(
                f"row {row.id!r}: meta.{self.ratings} must have two different ratings, got {found!r:.80}"
            )
        return [float(value) for value in found]


def kendall(scores: Sequence[float], ratings: Sequence[float]) -> float:
    """Kendall's tau over the pairs with different ratings."""
    total = pairs = 0
    for (a, x), (b, y) in combinations(zip(scores, ratings, strict=True), 2):
        pairs += x != y
        total += ((a > b) - (a < b)) * ((x > y) - (x < y))
    return total / pairs
