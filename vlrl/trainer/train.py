"""A whole training run: phases, checkpoints, held-out scores, the summary."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlrl.config import Config
from vlrl.context import RunContext
from vlrl.eval.heldout import evaluate_run
from vlrl.launch import find_deepspeed_config
from vlrl.logging.trackers import check_trackers
from vlrl.registry import ConfigError, suggest
from vlrl.trainer import checkpoint
from vlrl.trainer import overwrite as replaced
from vlrl.trainer.data import check_lengths, check_rows
from vlrl.trainer.loop import train_step
from vlrl.trainer.pipeline import asynchronous, one_step_off, overlap
from vlrl.trainer.run import Run

log = logging.getLogger("vlrl")


def prepare(config: Config) -> Run:
    """Build and check everything that needs no model. Raises ConfigError."""
    run = Run(config)
    check_trackers(run.settings.watch.trackers)
    check_output(run.output)
    check_rows(run)
    return run


def train(config: Config, resume: bool = False, live: bool | None = None, overwrite: bool = False) -> dict[str, Any]:
    """Train by `config`; returns the summary that is also written to `summary.json`.

    Args:
        config: The resolved config.
        resume: Continue from the newest checkpoint.
        live: Show the live view; None: as `watch.live` says.
        overwrite: Replace the run that the folder holds. It is moved aside once everything is checked and the model is loaded, and deleted after
            the new run's first checkpoint.

    Raises:
        ConfigError: For a config that cannot run, and for a folder that holds a run (without `resume` or `overwrite`) or anything else.
    """
    if overwrite:
        replaced.check(Path(str(config.tree.get("output") or "runs/unnamed")))
    return train_run(prepare(config), resume, live, overwrite)


def train_run(run: Run, resume: bool = False, live: bool | None = None, overwrite: bool = False) -> dict[str, Any]:
    """`train` for a run that is built already, in Python, and not yet opened."""
    if overwrite:
        replaced.check(run.output)
    last = None if overwrite else _last_checkpoint(run, resume)
    state = checkpoint.read_state(last) if last else None
    find_deepspeed_config()
    run.open(weights=last)
    if overwrite:
        if run.accelerator.is_main_process:
            replaced.set_aside(run.output)
        run.accelerator.wait_for_everyone()
        run.output.mkdir(parents=True, exist_ok=True)
    started = time.time()
    start_phase = _phase_of(run, state) if state else 0
    run.use(start_phase)
    _open_recorder(run, state, live)
    summary: dict[str, Any] = _read_partial(run) if state else {"heldout": {}, "seconds": {}}
    try:
        for index in range(start_phase, len(run.phases)):
            run.phase_step = 0
            run.enter(index)
            if state is not None:
                assert last is not None
                checkpoint.load(run, last)
                state = None
            else:
                check_lengths(run)
            run.engine.sync(run.policy)
            _train_phase(run, summary)
        _heldout(run, summary, "final")
        folder = _saved_now(run)
    finally:
        run.recorder.close()
        run.close()
    summary["seconds"]["total"] = summary["seconds"].get("total", 0.0) + time.time() - started
    return _finish(run, summary, folder)


def _train_phase(run: Run, summary: dict[str, Any]) -> None:
    last_phase = run.phase_index == len(run.phases) - 1
    if run.phase_step == 0 and last_phase:
        _heldout(run, summary, "cold_start")
    step_of = loop_named(run.settings.loop)
    begun = time.time()
    watch = run.settings.watch
    while run.phase_step < run.settings.steps:
        before = time.time()
        metrics = step_of(run)
        run.phase_step += 1
        if watch.heldout_every and run.phase_step % watch.heldout_every == 0:
            metrics |= evaluate_run(run).metrics()
        run.recorder.step(run.step, run.phase, metrics, {"step": time.time() - before, **run.stats.seconds}, run.groups)
        done = run.phase_step == run.settings.steps
        if (watch.checkpoint_every and run.phase_step % watch.checkpoint_every == 0) or (done and not last_phase):
            _write_partial(run, summary, begun)
            begun = time.time()
            run.recorder.flush()
            _save(run)
    _add_seconds(run, summary, begun)


LOOPS: dict[str, Callable[[RunContext], dict[str, float]]] = {
    "synchronous": train_step,
    "one_step_off": one_step_off,
    "asynchronous": asynchronous,
}


def loop_named(name: str) -> Callable[[RunContext], dict[str, float]]:
    """The step function of a loop. Raises ConfigError."""
    if name not in LOOPS:
        raise ConfigError(f"loop: no loop named {name!r}.{suggest(name, LOOPS)}")
    return LOOPS[name]


def _heldout(run: Run, summary: dict[str, Any], name: str) -> None:
    begun = time.time()
    result = evaluate_run(run)
    if not result.accuracy and not result.errors:
        return
    scores = dict(result.accuracy)
    summary["heldout"][name] = scores
    if result.errors:
        summary.setdefault("heldout_errors", {})[name] = dict(result.errors)
    summary["seconds"]["heldout"] = summary["seconds"].get("heldout", 0.0) + time.time() - begun
    run.recorder.event("heldout", name=name, scores=scores, **({"errors": dict(result.errors)} if result.errors else {}))


def check_output(output: Path) -> None:
    """Raise ConfigError if the run's folder cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / f".write-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"output: cannot write to {str(output)!r} ({error.strerror}); give another folder, `output=...`") from None


def _last_checkpoint(run: Run, resume: bool) -> Path | None:
    folders = checkpoint.saved(run.output)
    if resume:
        if not folders:
            log.warning("resume: no checkpoint under %s; starting from the beginning", run.output)
        return folders[-1] if folders else None
    if folders or (run.output / "metrics.jsonl").is_file():
        raise ConfigError(
            f"output: {str(run.output)!r} already holds a run; go on with --resume, start over with --overwrite, or give another `output=`"
        )
    return None


def _phase_of(run: Run, state: dict[str, Any]) -> int:
    names = [phase.name for phase in run.phases]
    if state["phase"] not in names:
        raise ConfigError(f"resume: the checkpoint is of phase {state['phase']!r}, the config has {names}; resume with the run's own config.yaml")
    return names.index(state["phase"])


def _open_recorder(run: Run, state: dict[str, Any] | None, live: bool | None) -> None:
    from vlrl.logging.recorder import Recorder

    main = run.accelerator.is_main_process
    watch = run.settings.watch
    run.recorder = Recorder(
        run.output, run.config.tree, live=watch.live if live is None else live, trackers=watch.trackers, decode=run.policy.decode, main=main
    )
    if main:
        (run.output / "config.yaml").write_text(run.config.dump(), encoding="utf-8")
    run.recorder.rewind(state["step"] if state else -1)


def _saved_now(run: Run) -> Path:
    folders = checkpoint.saved(run.output)
    if folders and checkpoint.read_state(folders[-1])["step"] == run.step:
        return folders[-1]
    return _save(run)


def _save(run: Run) -> Path:
    folder = checkpoint.save(run)
    if run.accelerator.is_main_process:
        replaced.discard(run.output)
    return folder


def _partial(run: Run) -> Path:
    return run.output / "partial_summary.json"


def _read_partial(run: Run) -> dict[str, Any]:
    """The partial summary of an interrupted run, or the summary of a finished one."""
    for path in (_partial(run), run.output / "summary.json"):
        if path.is_file():
            said = json.loads(path.read_text(encoding="utf-8"))
            return {name: said[name] for name in ("heldout", "seconds", "heldout_errors") if name in said}
    return {"heldout": {}, "seconds": {}}


def _add_seconds(run: Run, summary: dict[str, Any], begun: float) -> None:
    summary["seconds"][run.phase] = summary["seconds"].get(run.phase, 0.0) + time.time() - begun


def _write_partial(run: Run, summary: dict[str, Any], begun: float) -> None:
    _add_seconds(run, summary, begun)
    if run.accelerator.is_main_process:
        scratch = _partial(run).with_suffix(".part")
        scratch.write_text(json.dumps(summary), encoding="utf-8")
        os.replace(scratch, _partial(run))


def _finish(run: Run, summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    summary |= {"steps": run.step, "seed": run.seed, "metrics": str(run.output / "metrics.jsonl"), "checkpoint": str(folder)}
    summary["seconds"] = {name: round(value, 2) for name, value in summary["seconds"].items()}
    if ahead := overlap(run.output):
        summary["overlap"] = ahead
    if run.accelerator.is_main_process:
        from vlrl.logging.report import render_report

        (run.output / "summary.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
        summary["report"] = str(render_report(run.output))
        (run.output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        _partial(run).unlink(missing_ok=True)
    return summary
