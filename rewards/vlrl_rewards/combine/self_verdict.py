"""Rewards for answers that judge themselves: attempt, verdict, next attempt, ..."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.registry import build, register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.combine.nested import note, number

MOST = 16  # attempts that are looked at


def attempts(text: str, right: str, wrong: str) -> list[tuple[str, bool | None]]:
    """(attempt, its verdict) in order; the last one may have none. Blank attempts are left out."""
    pieces = re.split(f"({re.escape(right)}|{re.escape(wrong)})", text)
    pairs = zip(pieces[::2], [*pieces[1::2], None])
    return [(piece, None if verdict is None else verdict == right) for piece, verdict in pairs if piece.strip()]


@register("self_verdict")
@dataclass(frozen=True, kw_only=True)
class SelfVerdict(Reward):
    """final: r = `of` on the last attempt;  verdicts: the share of attempts whose verdict says what `of` finds (right from `threshold` on);
    both: final times verdicts.

    Attempts end at `right` or `wrong`.
    Paper: Xiong et al. 2025 (self-rewarding correction), arXiv:2502.19613: rule reward for the final answer; that verdicts are paid too is ours, as
    the mode "both". The marks could be checked in a secondary source alone. Edge: no verdict: verdicts is 0 (and so is both); more than 16
    attempts: 0; an attempt after "correct" counts like any. Range: that of `of`, or [0, 1].
    """

    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "math"})
    mode: Literal["final", "verdicts", "both"] = "final"
    right: str = "[VERIFY] correct."
    wrong: str = "[VERIFY] wrong."
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not self.right or not self.wrong or self.right == self.wrong:
            raise ValueError(f"right={self.right!r}, wrong={self.wrong!r}: give two different marks")
        object.__setattr__(self, "_inner", build(Reward, dict(self.of), "self_verdict.of"))

    def __call__(self, rollout: Rollout) -> float:
        made = attempts(rollout.text, self.right, self.wrong)
        if not made or len(made) > MOST:
            return 0.0
        scores = [number(self._inner, dataclasses.replace(rollout, text=text, rewards={}, info={})) for text, _ in made]  # type: ignore[attr-defined]
        judged = [(score >= self.threshold) == verdict for score, (_, verdict) in zip(scores, made) if verdict is not None]
        verdicts = sum(judged) / len(judged) if judged else 0.0
        note(rollout, "final", scores[-1])
        note(rollout, "verdicts", verdicts)
        return {"final": scores[-1], "verdicts": verdicts, "both": scores[-1] * verdicts}[self.mode]
