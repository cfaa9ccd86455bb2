"""Sequence parallelism in a run: what it refuses, and the groups that the ranks of one share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError
from vlrl.trainer.phase import PhasePlan
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.policy.sequence_group import SequenceGroup


def check_phase(phase: PhasePlan) -> None:
    """Raise ConfigError, before a model is loaded, for a phase that cannot be trained in slices of rows."""
    size = phase.settings.sequence_parallel
    if size == 1:
        return
    reason = phase.family.slices_problem
    if not reason and any(aux.reads_routing for aux in phase.aux_tensors.values()):
        reason = "'router_balance' needs the load of all tokens at once; leave the loss term out"
    if reason:
        raise ConfigError(f"sequence_parallel: {size} is not possible: {reason}, or set sequence_parallel: 1")


def check_ranks(phases: Sequence[PhasePlan], ranks: int) -> None:
    """Raise ConfigError for a phase whose `sequence_parallel` does not divide the number of ranks."""
    for phase in phases:
        size = phase.settings.sequence_parallel
        if ranks % size:
            few = [d for d in range(1, ranks + 1) if ranks % d == 0]
            raise ConfigError(
                f"sequence_parallel: {size} does not divide the {ranks} training process"
                f"{'es' * (ranks > 1)}; use one of {few}, or start a multiple of {size} "
                f"(`vlrl train CONFIG --processes {size}`)"
            )


def joint_groups(sequence: SequenceGroup | None, groups: Sequence[Group]) -> list[Group]:
    """The groups of all ranks that share rows, with their media, in the order in which one rank would have
    drawn them; this rank's own as the same objects. A collective of these ranks."""
    if sequence is None:
        return list(groups)
    import torch.distributed as torch_dist

    parts: list[Any] = [None] * sequence.size
    torch_dist.all_gather_object(parts, list(groups), group=sequence.process_group)
    parts[sequence.rank] = list(groups)
    return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]
