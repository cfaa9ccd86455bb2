"""Scores of the steps of a rollout, as a process reward model or a probing rollout strategy gives them.
Importing needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vlrl.methods.core.reward_shaping import TOKEN_REWARDS
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.views import PolicyView
from vlrl.types import Rollout

STEP_SCORES: Annotation[list] = Annotation(
    "steps",
    list,
    hint="rollout: {name: spae.probing}, or a process reward model",
    doc="one (end, score) pair per step, in order; a step ends before the token at position `end`",
)


def step_ends(pieces: Sequence[str], delimiter: str, every: int) -> list[int]:
    """Positions after which a step ends (not the last token): where the text ends in `delimiter`, or, if that
    is empty, every `every` tokens."""
    if not delimiter:
        return list(range(every, len(pieces), every))
    text, ends = "", []
    for t, piece in enumerate(pieces[:-1], start=1):
        text += piece
        if text.endswith(delimiter):
            ends.append(t)
    return ends


def steps_of(rollout: Rollout, policy: PolicyView, delimiter: str) -> list[tuple[int, str]]:
    """(end in tokens, text without the delimiter) of each step of a rollout; a step without text belongs to
    the next one."""
    found, start = [], 0
    pieces = [policy.tokenizer.decode([token]) for token in rollout.ids]
    for end in [*step_ends(pieces, delimiter, 1), len(rollout)]:
        text = policy.decode(rollout.ids[start:end]).removesuffix(delimiter).strip()
        if text:
            found.append((end, text))
            start = end
    return found


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
