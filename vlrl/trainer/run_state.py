"""What a restart needs besides weights, optimizer and random states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError
from vlrl.trainer.distributed import gather
from vlrl.trainer.pending import KEY as AHEAD

if TYPE_CHECKING:
    from vlrl.context import RunContext


def state_of(run: RunContext) -> dict[str, Any]:
    """Counters, the row history of all ranks, and what every plug-in of the current phase learned (on the main process). All ranks call it."""
    parts = [part[0] for part in gather(run.accelerator, [(run.history, run.stats.state_dict())])]
    rows = {key: value for history, _ in parts for key, value in history.items() if key != AHEAD}
    ahead = [history[AHEAD] for history, _ in parts if AHEAD in history]  # the one entry that is of a rank and not of a row
    return {
        "step": run.step,
        "phase": run.phase,
        "phase_step": run.phase_step,
        "seed": run.seed,
        "ranks": run.accelerator.num_processes,
        "history": rows,
        "ahead": ahead,
        "stats": {name: sum(stats[name] for _, stats in parts) for name in parts[0][1]},
        "policy_version": run.policy.version,
        "plugins": {slot: state for slot, plugin in run.current.plugins() if (state := plugin.state_dict())},
        "engine": run.engine.state_dict(),
    }


def restore(run: RunContext, state: Mapping[str, Any]) -> None:
    """Undo `state_of` after `run.enter`, on any number of ranks. Raises ConfigError if the state is of a plug-in that the config no longer has."""
    run.step, run.phase_step = state["step"], state["phase_step"]
    rank, ranks = run.accelerator.process_index, run.accelerator.num_processes
    run.history = dict(state["history"])
    if state["ahead"]:
        run.history[AHEAD] = state["ahead"][rank] if len(state["ahead"]) == ranks else redealt(state["ahead"], rank, ranks)
    run.stats.load_state_dict(state["stats"] if rank == 0 else dict.fromkeys(state["stats"], 0))  # ranks are summed for the log
    run.policy.version = state["policy_version"]
    plugins = dict(run.current.plugins())
    for slot, values in state["plugins"].items():
        if slot not in plugins:
            raise ConfigError(f"the checkpoint has state of {slot!r}, which this config does not name; resume with the run's own config.yaml")
        plugins[slot].load_state_dict(values)
    run.engine.load_state_dict(state["engine"])


def redealt(parts: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """This rank's share of batches that another number of ranks collected ahead: every group goes to one rank, counters to the first."""
    batches = []
    for same_step in zip(*(part["batches"] for part in parts)):
        trained = [group for batch in same_step for group in batch["groups"][: batch["trained"]]][rank::ranks]
        dropped = [group for batch in same_step for group in batch["groups"][batch["trained"] :]][rank::ranks]
        counts: dict[str, float] = {}
        for batch in same_step if rank == 0 else ():
            for name, value in batch["counts"].items():
                counts[name] = counts.get(name, 0.0) + value
        groups = [*trained, *dropped]
        numbers = {name: sum(batch[name] for batch in same_step) if rank == 0 else 0 for name in ("scored", "errors")}
        batches.append({"step": same_step[0]["step"], **numbers, "counts": counts, "trained": len(trained), "sampled": list(range(len(groups))),
                        "groups": groups})  # fmt: skip
    return {"phase": parts[0]["phase"], "batches": batches}
