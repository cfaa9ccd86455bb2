"""What a restart needs besides weights, optimizer and random states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.run import Run


def state_of(run: Run) -> dict[str, Any]:
    """Counters, the row history, and what every plug-in of the current phase learned."""
    return {
        "step": run.step,
        "phase": run.phase,
        "phase_step": run.phase_step,
        "seed": run.seed,
        "history": run.history,
        "tally": run.tally.state_dict(),
        "policy_version": run.policy.version,
        "plugins": {slot: state for slot, plugin in run.current.plugins() if (state := plugin.state_dict())},
        "engine": run.engine.state_dict(),
    }


def restore(run: Run, state: Mapping[str, Any]) -> None:
    """Undo `state_of` after `run.enter`. Raises ConfigError if the state is of a plug-in that the config no longer has."""
    run.step, run.phase_step = state["step"], state["phase_step"]
    run.history = dict(state["history"])
    run.tally.load_state_dict(state["tally"])
    run.policy.version = state["policy_version"]
    plugins = dict(run.current.plugins())
    for slot, values in state["plugins"].items():
        if slot not in plugins:
            raise ConfigError(f"the checkpoint has state of {slot!r}, which this config does not name; resume with the run's own config.yaml")
        plugins[slot].load_state_dict(values)
    run.engine.load_state_dict(state["engine"])
