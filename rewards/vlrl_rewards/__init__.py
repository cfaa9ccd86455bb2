"""Rewards and verifiers for reinforcement learning with verifiable rewards. Works without torch, and without
the trainer.

from vlrl_rewards import verify
verify("7", "<think>3 + 4</think><answer>7</answer>", kind="math").correct
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict, right, wrong
from vlrl_rewards.kinds import verifier
from vlrl_rewards.parsing import final_answer

__all__ = [
    "GoldError",
    "Response",
    "Unread",
    "Verdict",
    "final_answer",
    "right",
    "verifier",
    "verify",
    "wrong",
]


def verify(
    gold: Any, response: str, kind: str = "auto", choices: Sequence[str] | None = None, **options: Any
) -> Verdict:
    """Judge `response` against `gold`: `vlrl_rewards.verification.verify`, which this imports on the first
    call."""
    from vlrl_rewards.verification import verify as judge

    return judge(gold, response, kind, choices, **options)
