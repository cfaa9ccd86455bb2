"""Checkpoints: a plain HF folder with the trainer's state beside it, written atomically, the last N kept.

checkpoints/step-000050/{config.json, model.safetensors, processor files, trainer/{state.json, optimizer.pt, plugins.pt}}
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vlrl.registry import ConfigError
from vlrl.trainer.distributed import state_sharded
from vlrl.trainer.optimizer_state import read as read_moments
from vlrl.trainer.optimizer_state import write as write_moments
from vlrl.trainer.run_state import restore, state_of

if TYPE_CHECKING:
    from vlrl.context import RunContext

FOLDER = "checkpoints"


def saved(output: Path) -> list[Path]:
    """Complete checkpoints, oldest first. A folder gets its name only when everything in it is on disk."""
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
    if own.is_file():  # with more ranks than before the new ones keep their seeds
        _restore_random(torch.load(own, map_location="cpu", weights_only=True))


def read_state(folder: Path) -> dict[str, Any]:
    """The plain part of a checkpoint's state. Raises ConfigError for a folder that is no checkpoint."""
    path = folder / "trainer" / "state.json"
    if not path.is_file():
        raise ConfigError(f"resume: {str(folder)!r} is not a checkpoint (no trainer/state.json); give a folder under checkpoints/")
    return json.loads(path.read_text(encoding="utf-8"))


def prune(output: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints (0: keep all), and what an interrupted write left behind."""
    for path in (output / FOLDER).glob(".step-*.part"):
        shutil.rmtree(path, ignore_errors=True)
    for path in saved(output)[: -keep or None] if keep else []:
        shutil.rmtree(path, ignore_errors=True)


def _random_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
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
