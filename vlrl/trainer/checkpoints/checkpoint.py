"""Checkpoints: a Hugging Face folder with the trainer's state in it, written whole or not at all, with a
checksum per file; the last N are kept.

checkpoints/step-000050/{config.json, model.safetensors, processor files, trainer/{state.json, optimizer.pt,
plugins.pt, random-0.pt, manifest.json}}

`trainer/manifest.json` is written last: {"files": {name: [size, SHA-256]}, "sha256": of these}. The folder
has the name `.step-000050.part` until all of it is on disk.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import StorageError, storage_error
from vlrl.services.files import flush_folder, sha256
from vlrl.services.lazy import torch
from vlrl.trainer.checkpoints.changes import check_rows_same, rows_digest
from vlrl.trainer.checkpoints.files import (
    FOLDER,
    FORMAT,
    HASHED_AT_ONCE,
    MANIFEST,
    STATE,
    digest_of,
    folders,
    saved,
)
from vlrl.trainer.checkpoints.files import faults as faults  # part of this module's interface
from vlrl.trainer.checkpoints.files import newest_intact as newest_intact
from vlrl.trainer.checkpoints.optimizer_state import read as read_moments
from vlrl.trainer.checkpoints.optimizer_state import write as write_moments
from vlrl.trainer.pipeline.batch import share_of
from vlrl.trainer.ranks.collectives import agree, gather, state_sharded
from vlrl.trainer.session import Session

log = logging.getLogger("vlrl")

PAUSES = (0.5, 2.0)  # seconds before a checkpoint is tried again


def save(session: Session, ahead: Mapping[str, Any] | None = None, events: int = 0) -> Path:
    """`save_once`; tried again after a pause where the storage may be back by then (a busy or distant file
    system)."""
    for pause in PAUSES:
        try:
            return save_once(session, ahead, events)
        except StorageError as error:
            if not error.passing:
                raise
            if session.is_main:
                session.warn(f"{str(error).partition('; ')[0]}; the checkpoint is tried again in {pause:g} s")
            time.sleep(pause)
    return save_once(session, ahead, events)


def save_once(session: Session, ahead: Mapping[str, Any] | None = None, events: int = 0) -> Path:
    """Write a checkpoint of the state after `session.step`, with the batches collected ahead and the number
    of logged events. All ranks call it; returns its folder.

    Raises StorageError, on all ranks, where a file cannot be written; no partial folder stays then, and older
    checkpoints are as they were.
    """
    final = session.output / FOLDER / f"step-{session.step:06d}"
    scratch = final.with_name(f".{final.name}.part")
    main = session.is_main
    moments, state = read_moments(session), {**state_of(session, ahead), "events": events}

    def begin() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "trainer").mkdir(parents=True)

    def write() -> None:
        if main or state_sharded(session.accelerator):
            session.policy.save(scratch)
        _write_tensors(_random_state(), scratch / "trainer" / f"random-{session.rank}.pt")
        if main:
            _write_tensors(moments, scratch / "trainer" / "optimizer.pt")
            _write_tensors(
                {"plugins": state.pop("plugins"), "engine": state.pop("engine")},
                scratch / "trainer" / "plugins.pt",
            )
            (scratch / "trainer" / "config.yaml").write_text(session.config.dump(), encoding="utf-8")
            (scratch / STATE).write_text(json.dumps(state), encoding="utf-8")

    def finish() -> None:
        _write_manifest(scratch)
        _flush(scratch)
        old = final.with_name(f".{final.name}.old.part")
        if final.exists():  # a damaged one, written again
            os.replace(final, old)
        os.replace(scratch, final)
        flush_folder(final.parent)
        prune(session.output, session.settings.watch.keep)

    _together(session, begin if main else None, scratch)
    _together(session, write, scratch)
    _together(session, finish if main else None, scratch)
    return final


def _together(session: Session, action: Callable[[], None] | None, scratch: Path) -> None:
    """Run a part of `save` on this rank; where it fails on any rank, remove the partial folder and raise
    StorageError on all of them."""
    failure: StorageError | None = None
    try:
        if action is not None:
            action()
    except Exception as error:  # what cannot be written comes in many classes; others are raised again
        failure = storage_error(error, session.output, writing=True)
        if failure is None:
            raise
    try:
        agree(session.accelerator, failure)
    except StorageError:
        if session.is_main:
            shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_tensors(value: Any, path: Path) -> None:
    with path.open("wb") as file:  # torch's own writer hides the reason of a failed write
        torch.save(value, file)


def _write_manifest(folder: Path) -> None:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
        digests = list(pool.map(lambda name: sha256(folder / name), names))
    files = {
        name: [(folder / name).stat().st_size, digest] for name, digest in zip(names, digests, strict=True)
    }
    (folder / MANIFEST).write_text(
        json.dumps({"files": files, "sha256": digest_of(files)}, indent=1), encoding="utf-8"
    )


def load(session: Session, folder: Path) -> Mapping[str, Any] | None:
    """Restore everything but the weights (the policy is opened from the folder). Call after `Session.enter`
    of the saved phase. Returns the batches that this rank collected ahead."""
    trainer = folder / "trainer"
    write_moments(session, _read_tensors(trainer / "optimizer.pt"))
    state = read_state(folder)
    state |= _read_tensors(trainer / "plugins.pt")
    ahead = restore(session, state)
    own = trainer / f"random-{session.rank}.pt"
    if own.is_file():  # additional ranks keep their seeds
        _restore_random(_read_tensors(own))
    return ahead


def _read_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=path.name == "optimizer.pt")
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"resume: {str(path)!r} cannot be read ({said}); delete its checkpoint to use the one before"
        ) from None


def read_state(folder: Path) -> dict[str, Any]:
    """The plain part of a checkpoint's state. Raises ConfigError for a folder that is no checkpoint."""
    path = folder / STATE
    if not path.is_file():
        raise ConfigError(
            f"resume: {str(folder)!r} is not a checkpoint (no trainer/state.json); give a folder under "
            "checkpoints/"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def check_rows(session: Session, state: Mapping[str, Any]) -> None:
    """Raise ConfigError where the current phase's rows are not those of a checkpoint's state. The main
    process looks, all agree."""
    failure: ConfigError | None = None
    if session.is_main and session.phase == state["phase"]:
        try:
            check_rows_same(state.get("data", {}), rows_digest(session.rows))
        except ConfigError as error:
            failure = error
    agree(session.accelerator, failure)


def prune(output: Path, keep: int) -> None:
    """Delete what is older than the newest `keep` complete checkpoints (0: keep all), and partial folders of
    interrupted writes."""
    for path in (output / FOLDER).glob(".step-*.part"):
        shutil.rmtree(path, ignore_errors=True)
    complete = saved(output)
    if keep and len(complete) > keep:
        oldest = int(complete[-keep].name[5:])
        for path in folders(output):
            if int(path.name[5:]) < oldest:
                shutil.rmtree(path, ignore_errors=True)


# --- the run's state besides weights, optimizer and random states -------------------------------------------


def state_of(session: Session, ahead: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Counters, the row history of all ranks, batches collected ahead, and the state of every plug-in of the
    current phase. All ranks call it."""
    bad_rows = session.bad_rows
    own = (
        session.history,
        session.score_counts.state_dict(),
        ahead,
        bad_rows.state_dict(),
        bad_rows.reported,
    )
    parts = [part[0] for part in gather(session.accelerator, [own])]
    plugins = session.current.plugins()
    return {
        "format": FORMAT,
        "step": session.step,
        "phase": session.phase,
        "phase_step": session.phase_step,
        "seed": session.seed,
        "ranks": session.ranks,
        "history": {row: memory for history, *_ in parts for row, memory in history.items()},
        "collected_ahead": [ahead for _, _, ahead, *_ in parts if ahead is not None],
        "stats": {name: sum(stats[name] for _, stats, *_ in parts) for name in parts[0][1]},
        "bad_rows": {name: sum(bad[name] for *_, bad, _ in parts) for name in parts[0][3]},
        "bad_rows_reported": [reported for *_, reported in parts],  # of each rank
        "policy_version": session.policy.version,
        "data": session.shared(f"rows of {session.phase}", lambda: rows_digest(session.rows)),
        "plugins": {slot: state for slot, plugin in plugins if (state := plugin.state_dict())},
        "engine": session.engine.state_dict(),
    }


def restore(session: Session, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Undo `state_of` after `Session.enter`, on any number of ranks. Returns this rank's batches collected
    ahead.

    Raises ConfigError for the state of a plug-in that the config does not name.
    """
    rank, ranks = session.rank, session.ranks
    session.restore(state["step"], state["phase_step"], state["history"])
    # counts are summed over ranks for the log
    session.score_counts.load_state_dict(state["stats"] if rank == 0 else dict.fromkeys(state["stats"], 0))
    reported = state.get("bad_rows_reported", [])
    known = reported[rank] if len(reported) == ranks else [row for part in reported for row in part]
    session.bad_rows.load_state_dict(state.get("bad_rows", {}) if rank == 0 else {}, known)
    session.policy.advance(state["policy_version"])
    plugins = dict(session.current.plugins())
    for slot, values in state["plugins"].items():
        if slot not in plugins:
            raise ConfigError(
                f"the checkpoint has state of {slot!r}, which this config does not name; resume with the "
                "run's "
                "own config.yaml"
            )
        plugins[slot].load_state_dict(values)
    session.engine.load_state_dict(state["engine"])
    saved = state["collected_ahead"]
    return share_of(saved, rank, ranks) if saved else None


# --- random states and files --------------------------------------------------------------------------------


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
