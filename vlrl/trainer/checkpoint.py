"""Checkpoints: a Hugging Face folder with the trainer's state in it, written atomically; the last N are kept.

checkpoints/step-000050/{config.json, model.safetensors, processor files, trainer/{state.json, optimizer.pt, plugins.pt}}
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vlrl.registry import ConfigError
from vlrl.trainer.distributed import gather, state_sharded
from vlrl.trainer.optimizer_state import read as read_moments
from vlrl.trainer.optimizer_state import write as write_moments
from vlrl.trainer.pipeline import redistribute

if TYPE_CHECKING:
    from vlrl.context import RunContext

FOLDER = "checkpoints"


def saved(output: Path) -> list[Path]:
    """Complete checkpoints, oldest first. A folder gets its final name after all of its files are on disk."""
    found = [
        path for path in (output / FOLDER).glob("step-*") if re.fullmatch(r"step-\d+", path.name) and (path / "trainer" / "state.json").is_file()
    ]
    return sorted(found, key=lambda path: int(path.name[5:]))


def save(run: RunContext) -> Path:
    """Write a checkpoint of the state after `run.step`. All ranks call it; returns its folder."""
    final = run.output / FOLDER / f"step-{run.step:06d}"
    scratch = final.with_name(f".{final.name}.part")
    main = run.accelerator.is_main_process
    if main:
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "trainer").mkdir(parents=True)
    run.accelerator.wait_for_everyone()
    if main or state_sharded(run.accelerator):
        run.policy.save(scratch)
    torch.save(_random_state(), scratch / "trainer" / f"random-{run.accelerator.process_index}.pt")
    moments, state = read_moments(run), state_of(run)
    if main:
        torch.save(moments, scratch / "trainer" / "optimizer.pt")
        torch.save({"plugins": state.pop("plugins"), "engine": state.pop("engine")}, scratch / "trainer" / "plugins.pt")
        (scratch / "trainer" / "config.yaml").write_text(run.config.dump(), encoding="utf-8")
        (scratch / "trainer" / "state.json").write_text(json.dumps(state), encoding="utf-8")
    run.accelerator.wait_for_everyone()
    if main:
        _flush(scratch)
        if final.exists():
            shutil.rmtree(final)
        os.replace(scratch, final)
        _flush_folder(final.parent)
        prune(run.output, run.settings.watch.keep)
    run.accelerator.wait_for_everyone()
    return final


def load(run: RunContext, folder: Path) -> None:
    """Restore everything but the weights (the policy is opened from the folder). Call after `run.enter` of the saved phase."""
    trainer = folder / "trainer"
    write_moments(run, torch.load(trainer / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True))
    state = read_state(folder)
    state |= torch.load(trainer / "plugins.pt", map_location="cpu", weights_only=True)
    restore(run, state)
    own = trainer / f"random-{run.accelerator.process_index}.pt"
    if own.is_file():  # additional ranks keep their seeds
        _restore_random(torch.load(own, map_location="cpu", weights_only=True))


def read_state(folder: Path) -> dict[str, Any]:
    """The plain part of a checkpoint's state. Raises ConfigError for a folder that is no checkpoint."""
    path = folder / "trainer" / "state.json"
    if not path.is_file():
        raise ConfigError(f"resume: {str(folder)!r} is not a checkpoint (no trainer/state.json); give a folder under checkpoints/")
    return json.loads(path.read_text(encoding="utf-8"))


def prune(output: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints (0: keep all), and partial folders of interrupted writes."""
    for path in (output / FOLDER).glob(".step-*.part"):
        shutil.rmtree(path, ignore_errors=True)
    for path in saved(output)[: -keep or None] if keep else []:
        shutil.rmtree(path, ignore_errors=True)


# --- the run's state besides weights, optimizer and random states ---------------------------------------------------------------------------


def state_of(run: RunContext) -> dict[str, Any]:
    """Counters, the row history of all ranks, batches collected ahead, and the state of every plug-in of the current phase. All ranks call it."""
    parts = [part[0] for part in gather(run.accelerator, [(run.history, run.stats.state_dict(), run.collected_ahead)])]
    return {
        "step": run.step,
        "phase": run.phase,
        "phase_step": run.phase_step,
        "seed": run.seed,
        "ranks": run.accelerator.num_processes,
        "history": {row: memory for history, _, _ in parts for row, memory in history.items()},
        "collected_ahead": [ahead for _, _, ahead in parts if ahead is not None],
        "stats": {name: sum(stats[name] for _, stats, _ in parts) for name in parts[0][1]},
        "policy_version": run.policy.version,
        "plugins": {slot: state for slot, plugin in run.current.plugins() if (state := plugin.state_dict())},
        "engine": run.engine.state_dict(),
    }


def restore(run: RunContext, state: Mapping[str, Any]) -> None:
    """Undo `state_of` after `run.enter`, on any number of ranks. Raises ConfigError for the state of a plug-in that the config does not name."""
    run.step, run.phase_step = state["step"], state["phase_step"]
    rank, ranks = run.accelerator.process_index, run.accelerator.num_processes
    run.history = dict(state["history"])
    ahead = state["collected_ahead"]
    run.collected_ahead = None if not ahead else ahead[rank] if len(ahead) == ranks else redistribute(ahead, rank, ranks)
    run.stats.load_state_dict(state["stats"] if rank == 0 else dict.fromkeys(state["stats"], 0))  # ranks are summed for the log
    run.policy.version = state["policy_version"]
    plugins = dict(run.current.plugins())
    for slot, values in state["plugins"].items():
        if slot not in plugins:
            raise ConfigError(f"the checkpoint has state of {slot!r}, which this config does not name; resume with the run's own config.yaml")
        plugins[slot].load_state_dict(values)
    run.engine.load_state_dict(state["engine"])


# --- random states and files ----------------------------------------------------------------------------------------------------------------


def _random_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    kind, keys, position, has_gauss, cached = legacy
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
