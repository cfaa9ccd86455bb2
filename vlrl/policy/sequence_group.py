"""The ranks that hold slices of the same rows (`vlrl.policy.sequence_parallel`), and where their forwards are
joint ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from vlrl.services.lazy import torch


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share rows: `size` of them, of which this is number `rank`."""

    size: int
    rank: int
    process_group: Any

    @property
    def leads(self) -> bool:
        """Whether this rank counts for the group where ranks are added up."""
        return self.rank == 0

    @classmethod
    def of(cls, size: int, rank: int, world: int) -> SequenceGroup:
        """Groups of `size` consecutive ranks; a collective. Returns this rank's own."""
        groups = [torch.distributed.new_group(list(range(at, at + size))) for at in range(0, world, size)]
        return cls(size, rank % size, groups[rank // size])


_JOINT: ContextVar[SequenceGroup | None] = ContextVar("joint", default=None)


@contextmanager
def joint(group: SequenceGroup | None) -> Iterator[None]:
    """Inside, this thread's forwards are joint ones of the group's ranks, which must make the same ones."""
    token = _JOINT.set(group)
    try:
        yield
    finally:
        _JOINT.reset(token)


def joint_group() -> SequenceGroup | None:
    """The group of `joint`, if this is inside of one."""
    return _JOINT.get()
