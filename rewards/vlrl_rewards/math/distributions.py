"""Probability distributions as answers: lists of probabilities, compared by total variation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.text.denials import denied

_LIST = re.compile(r"\[([^\[\]]*)\]")


def read_distribution(text: str) -> list[float] | None:
    """The numbers of the one list in brackets, such as [0.1, 0.9]; None without one, with several, denied
    ("not [...]"), or with another entry."""
    text = text[:10_000]
    found = list(_LIST.finditer(text))
    if len(found) != 1 or denied(text, *found[0].span()):
        return None
    try:
        numbers = [float(part) for part in found[0][1].split(",")]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


@verifier("distribution")
@register("distribution")
@dataclass(frozen=True, kw_only=True)
class Distribution(Graded):
    """A probability distribution: r = 0.1 1[a list] + 0.1 1[as long as the gold] + 0.8 max(0, 1 - TV), TV =
    sum |p - q| / 2.

    Correct where TV is below `tolerance`. Paper: arXiv:2512.20760 (causal reasoning as a testbed of RLVR).
    Released code: zhichul/rlcausal d9d61324, training/rlvr/score_strict.py (0.1, 0.1, 0.8; tolerance 0.01).
    Gold: a list of probabilities, or its text as released ("[0.4, 0.6]"). Edge: no list, several, or one that
    holds something else than numbers: 0; the list need not sum to 1. Range [0, 1].
    """

    tolerance: float = 0.01
    correct_at: float = 0.992

    def __post_init__(self) -> None:
        if not 0 < self.tolerance <= 1:
            raise ValueError(f"tolerance: {self.tolerance} must be above 0 and at most 1")

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        numbers = read_distribution(str(list(gold)) if isinstance(gold, (list, tuple)) else str(gold))
        if not numbers:
            raise GoldError(f"answer: {gold!r:.100} is not a list of probabilities such as [0.1, 0.9]")
        target = numbers
        answer = self.committed(response)
        said = read_distribution(answer.text)
        if said is None:
            raise Unread("no list of probabilities", answer)
        if len(said) != len(target):
            return self.scored(answer, 0.1, False, f"{len(said)} probabilities instead of {len(target)}")
        distance = sum(abs(p - q) for p, q in zip(said, target, strict=True)) / 2
        return self.scored(
            answer,
            0.2 + 0.8 * max(0.0, 1.0 - distance),
            distance < self.tolerance - 1e-9,
            f"total variation {distance:.3f}",
        )
