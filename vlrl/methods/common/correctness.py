"""Accuracy: the share of correct rollouts (`Rollout.correct`, which the scorer sets), in training and on
held-out rows.

Shapes: B rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.plugins.contexts import CallbackContext, PhaseContext
from vlrl.plugins.registry import ConfigError
from vlrl.types import LossInputs, Rollout

if TYPE_CHECKING:
    from torch import Tensor


def success_rate(rollouts: Sequence[Rollout]) -> float:
    """The share of correct rollouts; 0 where there is no rollout."""
    return sum(rollout.correct for rollout in rollouts) / len(rollouts) if rollouts else 0.0


def mean_outcome(rollouts: Sequence[Rollout]) -> float:
    """The mean raw score of the rows' outcome reward: the accuracy where that is 0 or 1. Unscored rollouts
    are left out; 0 where none is scored."""
    outcomes = [rollout.outcome for rollout in rollouts if rollout.outcome is not None]
    return sum(outcomes) / len(outcomes) if outcomes else 0.0


def correct_rollouts(x: LossInputs) -> Tensor:
    """(B,): 1 for a correct rollout, 0 for another one, in the dtype of the log-probs."""
    return x.logp_BT.new_tensor([float(rollout.correct) for rollout in x.batch.rollouts])


def check_heldout(run: PhaseContext, plugin: str) -> None:
    """Raise ConfigError in a run without held-out rows. `plugin` is the slot and name of the plug-in that
    reads the held-out accuracy."""
    if not run.has_heldout:
        raise ConfigError(
            f"{plugin} reads the held-out accuracy, and there are no held-out rows; name a source at "
            "data.heldout"
        )


def heldout_accuracy(run: CallbackContext) -> float | None:
    """The mean over tasks of the held-out accuracy, 0..1; None where no task could be scored (a task whose
    rows all failed is absent).

    A collective: all ranks call it.
    """
    scores = run.accuracy()
    return sum(scores.values()) / len(scores) if scores else None
