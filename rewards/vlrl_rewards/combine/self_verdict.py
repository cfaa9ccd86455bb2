"""Rewards for responses with self-verification: attempt, own verdict, next attempt ..."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.combine.nested import check_correct_at, note, note_correct, noted_correct, number

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
class SelfVerdict(Reward):
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

    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "math"})
    mode: Literal["final", "verdicts", "both"] = "final"
    right: str = "[VERIFY] correct."
    wrong: str = "[VERIFY] wrong."

    def __post_init__(self) -> None:
        if not self.right or not self.wrong or self.right == self.wrong:
            raise ValueError(f"right={self.right!r}, wrong={self.wrong!r}: give two different marks")
        _ = self.inner  # built now, so that a wrong config is refused at once
        check_correct_at(self)

    @cached_property
    def inner(self) -> Reward:
        """The reward that `of` configures."""
        return build(Reward, dict(self.of), "self_verdict.of")

    @property
    def inner_rewards(self) -> tuple[Reward, ...]:
        return (self.inner,)

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

    def correct(self, rollout: Rollout, score: float) -> bool:
        """What `of` says of the last attempt."""
        return noted_correct(self, rollout)
