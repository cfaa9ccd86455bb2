"""Communication between ranks. With one process every function is the identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vlrl.plugins.registry import ConfigError
    from vlrl.services.failures import RunFailure

T = TypeVar("T")


class Ranked(Protocol):
    """A session, or a view of it."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def step(self) -> int: ...


def moment_of(run: Ranked) -> str:
    """The step, with several ranks also the rank, for the line about a failure."""
    return f"rank {run.rank}, step {run.step}" if run.ranks > 1 else f"step {run.step}"


def gather(accelerator: Accelerator, values: Sequence[Any]) -> list[list[Any]]:
    """The lists of all ranks, in rank order. Plain Python values only."""
    if accelerator.num_processes == 1:
        return [list(values)]
    import torch.distributed as torch_dist

    # own_group: two threads in collectives of one group would pair each other's messages
    out: list[Any] = [None] * accelerator.num_processes
    torch_dist.all_gather_object(out, list(values), group=getattr(accelerator, "own_group", None))
    return out


def gather_in_turn(accelerator: Accelerator, values: Sequence[T]) -> list[T]:
    """The values of all ranks, the first of each, then the second of each: as rows are dealt to ranks."""
    if accelerator.num_processes == 1:
        return list(values)
    parts = gather(accelerator, values)
    return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]


class OwnGroup:
    """An accelerator whose `gather` goes through a process group of its own, so that a thread can gather
    while another one is in a collective.

    Made on all ranks at the same moment (a collective); with one process it changes nothing.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator, self.own_group = accelerator, None
        if accelerator.num_processes > 1:
            import torch.distributed as torch_dist

            self.own_group = torch_dist.new_group(backend="gloo")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.accelerator, name)


def agree(accelerator: Accelerator, failure: RunFailure | ConfigError | None) -> None:
    """Raise on all ranks the failure that any rank has: on the first that has one as it is, on the others
    marked `quiet` (one rank prints it)."""
    found = gather(accelerator, [failure])
    first = next((rank for rank, (failed,) in enumerate(found) if failed is not None), None)
    if first is None:
        return
    said: Any = found[first][0] if failure is None else failure
    said.quiet = accelerator.process_index != first
    raise said


def state_sharded(accelerator: Any) -> bool:
    """Whether weights or optimizer states are sharded over ranks (FSDP, DeepSpeed)."""
    return getattr(getattr(accelerator, "distributed_type", None), "value", "NO") in ("DEEPSPEED", "FSDP")


def params_sharded(accelerator: Any) -> bool:
    """Whether the weights themselves are sharded over ranks (ZeRO-3, FSDP)."""
    plugin = getattr(getattr(accelerator, "state", None), "deepspeed_plugin", None)
    return state_sharded(accelerator) and (plugin is None or plugin.zero_stage == 3)


def sum_over_ranks(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Element-wise sums over ranks."""
    return [sum(column) for column in zip(*gather(accelerator, values))]


def without_media(group: Group) -> Group:
    """A copy for other ranks: without media, and without signals of many numbers per token (hidden
    states)."""
    none: dict[str, Any] = {"images": (), "videos": (), "audios": ()}
    prompt = replace(group.prompt, train=None, row=replace(group.prompt.row, **none), **none)

    def strip(rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [
            replace(
                r,
                prompt=prompt,
                signals={k: v for k, v in r.signals.items() if not (v and isinstance(v[0], list))},
            )
            for r in rollouts
        ]

    return Group(prompt, strip(group.rollouts), group.id, group.info, strip(group.untrained))


def all_groups(accelerator: Accelerator, groups: Sequence[Group]) -> tuple[list[Group], slice]:
    """The groups of all ranks, and the slice of this rank's own. The others' come without media."""
    if accelerator.num_processes == 1:
        return list(groups), slice(0, len(groups))
    parts = gather(accelerator, [without_media(group) for group in groups])
    rank = accelerator.process_index
    before = sum(map(len, parts[:rank]))
    parts[rank] = list(groups)  # its own with their media, and as the same objects
    return [group for part in parts for group in part], slice(before, before + len(groups))
