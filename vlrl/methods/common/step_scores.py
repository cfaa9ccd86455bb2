"""Scores of the steps of a rollout, as a process reward model or a probing rollout strategy gives them.
Importing needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vlrl.methods.core.reward_shaping import TOKEN_REWARDS
from vlrl.plugins.capabilities import Annotation
from vlrl.types import Rollout

STEP_SCORES: Annotation[list] = Annotation(
    "steps",
    list,
    hint="rollout: {name: spae.probing}, or a process reward model",
    doc="one (end, score) pair per step, in order; a step ends before the token at position `end`",
)


def add_token_rewards(rollout: Rollout, at_ends: Sequence[tuple[int, float]]) -> None:
    """Add rewards to TOKEN_REWARDS of a rollout at the last tokens of its steps: (end, reward) each."""
    row = list(TOKEN_REWARDS.get(rollout, [0.0] * len(rollout)))
    for end, value in at_ends:
        row[end - 1] += value
    TOKEN_REWARDS.set(rollout, row)


def mean_step_score(rollout: Rollout) -> float:
    """The mean score of a rollout's steps; 0 without any."""
    scores = [score for _, score in STEP_SCORES.get(rollout, [])]
    return math.fsum(scores) / len(scores) if scores else 0.0
