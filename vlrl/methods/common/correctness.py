"""Which raw reward says whether a rollout is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlrl.types import Group, LossInputs, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def slots_of(run: RunContext) -> list[str]:
    """The reward slots that count, in their order."""
    return [slot for slot, reward in getattr(run, "rewards", {}).items() if reward.weight > 0]


def accuracies(group: Group, slot: str = "", slots: list[str] | None = None) -> list[float]:
    """One number per rollout: the raw reward `slot`; without one, the first of `slots` that scored the group; without any, the total.

    Raises KeyError if `slot` did not score a rollout.
    """
    first = slot or next((name for name in slots or () if len(group) and all(name in rollout.rewards for rollout in group)), "")
    return group.raw(first) if first else group.rewards


def success_rate(rollouts: Sequence[Rollout]) -> float:
    """The share of correct rollouts; 0 where there is no rollout."""
    return sum(rollout.correct for rollout in rollouts) / len(rollouts) if rollouts else 0.0


def correct_rollouts(x: LossInputs) -> Tensor:
    """(B,): 1 for a correct rollout, 0 for another one, in the dtype of the log-probs."""
    return torch.tensor([rollout.correct for rollout in x.batch.rollouts], device=x.logp_BT.device, dtype=x.logp_BT.dtype)
