"""A whole training run: phases, checkpoints, held-out scores, the summary."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlrl.activity.config_findings import config_findings
from vlrl.activity.findings import findings
from vlrl.activity.observer import Activity
from vlrl.activity.report import BAD, lines
from vlrl.config import Config
from vlrl.eval.heldout import evaluate_run
from vlrl.logging.trackers import check_trackers
from vlrl.plugins.contexts import RunContext
from vlrl.plugins.registry import ConfigError, suggest
from vlrl.plugins.stages import Source
from vlrl.services.failures import StoppedError
from vlrl.services.files import write_whole
from vlrl.trainer.checkpoints import checkpoint
from vlrl.trainer.checkpoints import overwrite as replaced
from vlrl.trainer.data.rows import check_lengths, check_rows
from vlrl.trainer.pipeline.pipeline import asynchronous, one_step_off, overlap, settle
from vlrl.trainer.preflight import Preflight, check_output
from vlrl.trainer.ranks.collectives import agree, gather
from vlrl.trainer.ranks.guard import Guard, guarded
from vlrl.trainer.ranks.launch import find_deepspeed_config
from vlrl.trainer.run import Run
from vlrl.trainer.step.loop import train_step

log = logging.getLogger("vlrl")


def prepare(config: Config, checked: Preflight | None = None, rows: int = 2000) -> Run:
    """Build and check everything that needs no model, `rows` rows of each source among it; rows that
    `checked` has read and checked are taken over. Raises ConfigError."""
    run = Run(config)
    check_trackers(run.settings.watch.trackers)
    if checked is not None:
        run.cached_rows.update(checked.cached_rows)
        for mine, read in zip(
            run.phases, checked.phases, strict=True
        ):  # with the sources that read them, which count the rows left out
            for split in ("train", "heldout"):
                getattr(mine, split).update(
                    {slot: one for slot, one in getattr(read, split).items() if isinstance(one, Source)}
                )
        for source in checked.sources:
            source.check(run)
    else:
        check_output(run.output)
        check_rows(run, rows)
    return run


def train(
    config: Config,
    resume: bool = False,
    live: bool | None = None,
    overwrite: bool = False,
    checked: Preflight | None = None,
) -> dict[str, Any]:
    """Train by `config`; returns the summary that is also written to `summary.json`.

    Args:
        config: The resolved config.
        resume: Continue from the newest checkpoint.
        live: Show the live view; None: as `watch.live` says.
        overwrite: Replace the run that the folder holds. It is moved aside once everything is checked and the
            model is loaded, and deleted after the new run's first checkpoint.
        checked: What `vlrl.trainer.preflight` has checked of the config already.

    Raises:
        ConfigError: For a config that cannot run, and for a folder that holds a run (without `resume` or
            `overwrite`) or anything else.
    """
    if overwrite:
        replaced.check(Path(str(config.tree.get("output") or "runs/unnamed")))
    return train_run(prepare(config, checked), resume, live, overwrite)


def train_run(
    run: Run, resume: bool = False, live: bool | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """`train` for a run that is built already, in Python, and not yet opened."""
    if overwrite:
        replaced.check(run.output)
    find_deepspeed_config()
    run.connect()
    with guarded(run) as guard:
        return _train(run, guard, resume, live, overwrite)


def _train(run: Run, guard: Guard, resume: bool, live: bool | None, overwrite: bool) -> dict[str, Any]:
    last, notes = (None, []) if overwrite else _last_checkpoint(run, resume)
    state = checkpoint.read_state(last) if last else None
    if run.accelerator.is_main_process:
        log.info("loading the model: %s", last or run.family.model or f"{run.family.name}, built at random")
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
    for note in notes:
        run.recorder.event("warning", message=note)
    summary: dict[str, Any] = _read_partial(run) if state else {"heldout": {}, "seconds": {}}
    with ExitStack() as ends:
        ends.callback(run.close)
        ends.callback(run.recorder.close)
        ends.callback(
            lambda: run.bad_rows.append(run, run.bad_rows.take())
        )  # of a step that was not finished
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
            _train_phase(run, guard, summary)
        _heldout(run, summary, "final")
        folder = _saved_now(run)
    summary["seconds"]["total"] = summary["seconds"].get("total", 0.0) + time.time() - started
    return _finish(run, summary, folder)


def _train_phase(run: Run, guard: Guard, summary: dict[str, Any]) -> None:
    last_phase = run.phase_index == len(run.phases) - 1
    if reason := guard.after_step():
        raise _stopped(run, reason, "there was nothing new to save")
    if run.phase_step == 0 and last_phase:
        _heldout(run, summary, "start")
    step_of = loop_named(run.settings.loop)
    begun = time.time()
    watch = run.settings.watch
    run.activity = Activity() if watch.activity_steps and run.phase_step == 0 else None
    while run.phase_step < run.settings.steps:
        before = time.time()
        metrics = step_of(run)
        run.phase_step += 1
        if run.activity is not None and run.phase_step in (watch.activity_steps, run.settings.steps):
            report_activity(run, run.activity)
            run.activity = None
        if watch.heldout_every and run.phase_step % watch.heldout_every == 0:
            metrics |= evaluate_run(run).metrics()
        run.recorder.step(
            run.step, run.phase, metrics, {"step": time.time() - before, **run.stats.seconds}, run.groups
        )
        run.bad_rows.write(run)
        done = run.phase_step == run.settings.steps
        reason = guard.after_step()
        if (
            reason
            or (watch.checkpoint_every and run.phase_step % watch.checkpoint_every == 0)
            or (done and not last_phase)
        ):
            _write_partial(run, summary, begun)
            begun = time.time()
            run.recorder.flush()
            folder = _save(run)
        if reason:
            raise _stopped(run, reason, f"its checkpoint is {str(folder)!r}")
    _add_seconds(run, summary, begun)


def report_activity(run: Run, activity: Activity) -> None:
    """Write what every slot did so far to events.jsonl, and warn of each slot that did nothing or contradicts
    another one."""
    found = [*config_findings(run), *findings(run, activity)]
    run.recorder.event(
        "activity",
        phase=run.phase,
        lines=lines(run, activity, found),
        findings=[finding._asdict() for finding in found],
    )
    if run.accelerator.is_main_process:
        for finding in found:
            if finding.level in BAD:
                run.warn(f"activity of phase {run.phase}, first {run.phase_step} steps: {finding}")


def _stopped(run: Run, reason: str, saved: str) -> StoppedError:
    stopped = StoppedError(f"stopped by {reason} after step {run.step}; {saved}: go on with --resume")
    stopped.quiet = run.rank != 0
    return stopped


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
    if shown := result.first_answers(run.settings.watch.heldout_answers):
        summary.setdefault("answers", {})[name] = [answer._asdict() for answer in shown]
    if result.errors:
        summary.setdefault("heldout_errors", {})[name] = dict(result.errors)
    summary["seconds"]["heldout"] = summary["seconds"].get("heldout", 0.0) + time.time() - begun
    run.recorder.event(
        "heldout", name=name, scores=scores, **({"errors": dict(result.errors)} if result.errors else {})
    )


def _last_checkpoint(run: Run, resume: bool) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, chosen by the main process for all ranks, and what was wrong with newer
    ones."""
    found: tuple[Path | None, list[str]] = None, []
    failure: ConfigError | None = None
    if run.accelerator.is_main_process:
        try:
            found = _choose_checkpoint(run, resume)
        except ConfigError as error:
            failure = error
    agree(run.accelerator, failure)
    return gather(run.accelerator, [found])[0][0]


def _choose_checkpoint(run: Run, resume: bool) -> tuple[Path | None, list[str]]:
    if resume:
        last, notes = checkpoint.newest_intact(run.output)
        if last is None:
            notes.append(f"resume: no checkpoint under {run.output}; starting from the beginning")
        for note in notes:
            log.warning(note)
        return last, notes
    if checkpoint.folders(run.output) or (run.output / "metrics.jsonl").is_file():
        raise ConfigError(
            f"output: {str(run.output)!r} already holds a run; go on with --resume, start over with "
            "--overwrite, or give another `output=`"
        )
    return None, []


def _phase_of(run: Run, state: dict[str, Any]) -> int:
    names = [phase.name for phase in run.phases]
    if state["phase"] not in names:
        raise ConfigError(
            f"resume: the checkpoint is of phase {state['phase']!r}, the config has {names}; resume with "
            "the run's own config.yaml"
        )
    return names.index(state["phase"])


def _open_recorder(run: Run, state: dict[str, Any] | None, live: bool | None) -> None:
    from vlrl.logging.recorder import Recorder

    main = run.accelerator.is_main_process
    watch = run.settings.watch
    run.recorder = Recorder(
        run.output,
        run.config.tree,
        live=watch.live if live is None else live,
        trackers=watch.trackers,
        decode=run.policy.decode,
        main=main,
    )
    if main:
        write_whole(run.output / "config.yaml", run.config.dump())
    ahead = max((len(part["batches"]) for part in state["collected_ahead"]), default=0) if state else 0
    run.recorder.rewind(state["step"] if state else -1, state.get("events") if state else 0, ahead)


def _saved_now(run: Run) -> Path:
    folders = checkpoint.saved(run.output)
    if folders and checkpoint.read_state(folders[-1])["step"] == run.step:
        return folders[-1]
    return _save(run)


def _save(run: Run) -> Path:
    settle(run)
    folder = checkpoint.save(run, {"events": run.recorder.events})
    if run.accelerator.is_main_process:
        replaced.discard(run.output)
    return folder


def _partial(run: Run) -> Path:
    return run.output / "partial_summary.json"


def _read_partial(run: Run) -> dict[str, Any]:
    """The partial summary of an interrupted run, or the summary of a finished one."""
    empty: dict[str, Any] = {"heldout": {}, "seconds": {}}
    for path in (_partial(run), run.output / "summary.json"):
        try:
            said = json.loads(path.read_bytes())
            return empty | {
                name: dict(said[name])
                for name in ("heldout", "seconds", "heldout_errors", "answers")
                if name in said
            }
        except FileNotFoundError:
            continue
        except (ValueError, TypeError):
            log.warning(
                (
                    "%s is damaged and not used: held-out scores and seconds of before are missing from "
                    "the "
                    "summary"
                ),
                path,
            )
    return empty


def _add_seconds(run: Run, summary: dict[str, Any], begun: float) -> None:
    summary["seconds"][run.phase] = summary["seconds"].get(run.phase, 0.0) + time.time() - begun


def _write_partial(run: Run, summary: dict[str, Any], begun: float) -> None:
    _add_seconds(run, summary, begun)
    if run.accelerator.is_main_process:
        write_whole(_partial(run), json.dumps(summary))


def _finish(run: Run, summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    summary |= {
        "steps": run.step,
        "seed": run.seed,
        "metrics": str(run.output / "metrics.jsonl"),
        "checkpoint": str(folder),
    }
    summary["seconds"] = {name: round(value, 2) for name, value in summary["seconds"].items()}
    if ahead := overlap(run.output):
        summary["overlap"] = ahead
    if run.accelerator.is_main_process:
        from vlrl.logging.report import render_report

        write_whole(run.output / "summary.json", json.dumps(summary, indent=2) + "\n")
        try:
            summary["report"] = str(render_report(run.output))
        except ValueError as error:  # the log of a run that was finished already may be lost
            log.warning("no report was written: %s", error)
        write_whole(run.output / "summary.json", json.dumps(summary, indent=2) + "\n")
        _partial(run).unlink(missing_ok=True)
    return summary
