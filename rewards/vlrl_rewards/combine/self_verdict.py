"""Rewards for responses with self-verification: attempt, own verdict, next attempt ..."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.registry import register
from vlrl.types import Rollout
from vlrl_rewards.combine.nested import OverReward, note, note_correct, number

MAX_ATTEMPTS = 16


def attempts(text: str, right: str, wrong: str) -> list[tuple[str, bool | None]]:
    """(attempt, its verdict or None) in order; only the last may have none. Blank attempts are left out."""
    pieces = re.split(f"({re.escape(right)}|{re.escape(wrong)})", text)
    pairs = zip(pieces[::2], [*pieces[1::2], None])
    return [
        (piece, None if verdict is None else verdict == right) for piece, verdict in pairs if piece.strip()
    ]


@register("self_verdict")
@dataclass(frozen=True, kw_only=True)
class SelfVerdict(OverReward):
    """Self-verification: attempts, each with its own verdict.

        final:     r = `of` on the last attempt
        verdicts:  r = verdicts that agree with `of` (its `correct_at`) / verdicts
        both:      their product

    An attempt ends at the text `right` or `wrong`, which is its verdict.
    Paper: Xiong et al. 2025 (self-rewarding correction), arXiv:2502.19613: rule reward for the final answer;
    the modes "verdicts" and "both" are ours. The two marks are the release's. Edge: no verdict: verdicts and
    both are 0; more than 16 attempts: 0; an attempt behind "correct" counts like any other. Range: that of
    `of`, or [0, 1]. A rollout is correct, in every mode, where `of` says so of the last attempt.
    """

    mode: Literal["final", "verdicts", "both"] = "final"
    right: str = "[VERIFY] correct."
    wrong: str = "[VERIFY] wrong."

    def __post_init__(self) -> None:
        if not self.right or not self.wrong or self.right == self.wrong:
            raise ValueError(f"right={self.right!r}, wrong={self.wrong!r}: give two different marks")
        super().__post_init__()

    def __call__(self, rollout: Rollout) -> float:
        made = attempts(rollout.text, self.right, self.wrong)
        if not made or len(made) > MAX_ATTEMPTS:
            note_correct(self, rollout, False)
            return 0.0
        scores = [
            number(self.inner, dataclasses.replace(rollout, text=text, rewards={}, info={}))
            for text, _ in made
        ]
        correct = [self.inner.correct(rollout, score) for score in scores]
        agrees = [right == verdict for right, (_, verdict) in zip(correct, made) if verdict is not None]
        verdicts = sum(agrees) / len(agrees) if agrees else 0.0
        note(rollout, "final", scores[-1])
        note(rollout, "verdicts", verdicts)
        note_correct(self, rollout, correct[-1])
        return {"final": scores[-1], "verdicts": verdicts, "both": scores[-1] * verdicts}[self.mode]
