"""Held-out accuracy, for the plug-ins that change something when it stops to rise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.context import RunContext


def check_heldout(run: RunContext, slot: str) -> None:
    """Refuse a run without held-out rows."""
    if not run.current.heldout:
        raise ConfigError(f"{slot} waits for the held-out accuracy to stop rising, and there are no held-out rows; name some at data.heldout")


def accuracy(run: RunContext) -> float:
    """The mean over tasks of the held-out accuracy, 0..1. All ranks call it."""
    scores = run.accuracy()
    return sum(scores.values()) / len(scores)
