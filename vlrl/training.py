"""A whole training run: a plan becomes a session; phases, checkpoints, held-out scores, the log, the summary.

This is where the session meets what watches it: the recorder, the activity of the slots, the report.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlrl.activity.config_findings import config_findings
from vlrl.activity.findings import findings
from vlrl.activity.observer import Activity
from vlrl.activity.report import BAD, lines
from vlrl.config import Config
from vlrl.logging.recorder import METRICS, Recorder, read_record
from vlrl.logging.report import render_report
from vlrl.plugins.finding import RunNumbers
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.separate_engine import SeparateEngine
from vlrl.services.failures import StoppedError
from vlrl.services.files import write_whole
from vlrl.services.third_party import quiet
from vlrl.trainer.checkpoints import checkpoint
from vlrl.trainer.checkpoints import overwrite as replaced
from vlrl.trainer.checkpoints.changes import CONFIG, config_changes
from vlrl.trainer.checkpoints.files import STATE, faults, saved
from vlrl.trainer.data import bad_rows
from vlrl.trainer.data.rows import check_lengths
from vlrl.trainer.heldout import evaluate_run
from vlrl.trainer.pipeline.loops import Loop, open_loop, overlap_seconds
from vlrl.trainer.plan import Plan, check_free, output_of
from vlrl.trainer.ranks.collectives import agree, gather
from vlrl.trainer.ranks.guard import Guard, guarded
from vlrl.trainer.ranks.launch import find_deepspeed_config
from vlrl.trainer.session import Session
from vlrl.trainer.step.engine_check import EngineCheck
from vlrl.trainer.step.step import Step
from vlrl.trainer.views import StepView

log = logging.getLogger("vlrl")


def train(
    config: Config, resume: bool = False, live: bool | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Train by `config`; returns the summary that is also written to `summary.json`.

    A mistake in the config, in the output folder, in the rows or in their gold answers is found before torch
    is imported.

    Args:
        config: The resolved config.
        resume: Continue from the newest checkpoint.
        live: Show the live view; None: as `watch.live` says.
        overwrite: Replace the run that the folder holds. It is moved aside once everything is checked and the
            model is loaded, and deleted after the new run's first checkpoint.

    Raises:
        ConfigError: For a config that cannot run, and for a folder that holds a run (without `resume` or
            `overwrite`) or anything else.
    """
    quiet()
    begun = time.monotonic()
    if overwrite:
        replaced.check(output_of(config))
    elif not resume:
        check_free(output_of(config))
    else:
        named = [folder for folder in saved(output_of(config)) if not faults(folder, {STATE, CONFIG})]
        if named:  # the other files are read once the model is to be loaded
            config_changes(named[-1], config, checkpoint.read_state(named[-1])["phase"])
    plan = Plan.of(config)
    plan.check()
    if int(os.environ.get("RANK", "0")) == 0:
        log.info("checked the config and %d rows in %.1f s", plan.row_count, time.monotonic() - begun)
        log.info("loading torch and transformers")
    return train_session(Session(plan), resume, live, overwrite)


def train_session(
    session: Session, resume: bool = False, live: bool | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """`train` for a session that is not open yet."""
    if overwrite:
        replaced.check(session.output)
    find_deepspeed_config()
    session.connect()
    with guarded(session) as guard:
        return Training(session, guard, live).run(resume, overwrite)


class Training:
    """One start of a run: the session, what guards and records it, and the summary that it makes."""

    def __init__(self, session: Session, guard: Guard, live: bool | None = None) -> None:
        self.session, self.guard, self.live = session, guard, live
        self.summary: dict[str, Any] = {"heldout": {}, "seconds": {}}
        self.recorder: Recorder

    @property
    def is_last_phase(self) -> bool:
        """Whether no phase follows."""
        return self.session.phase_index == len(self.session.phases) - 1

    def run(self, resume: bool, overwrite: bool) -> dict[str, Any]:
        """Train all phases, or those that are left. Returns the summary."""
        session = self.session
        last, notes = (None, []) if overwrite else last_checkpoint(session, resume)
        state = checkpoint.read_state(last) if last else None
        if session.is_main:
            model = last or session.family.model or f"{session.family.name}, built at random"
            log.info("loading the model: %s", model)
        start_phase = phase_of(session, state) if state else 0
        session.use(start_phase)
        if state:
            checkpoint.check_rows(session, state)
        session.open(weights=last)
        if overwrite:
            if session.is_main:
                replaced.set_aside(session.output)
            session.accelerator.wait_for_everyone()
            session.output.mkdir(parents=True, exist_ok=True)
        started = time.time()
        self._open_recorder(state)
        for note in notes:
            self.recorder.event("warning", message=note)
        self.summary |= read_partial(session.output) if state else {}
        with ExitStack() as ends:
            ends.callback(session.close)
            ends.callback(self.recorder.close)
            # of a step that was not finished
            ends.callback(lambda: bad_rows.append(session.output, session.bad_rows.take()))
            for index in range(start_phase, len(session.phases)):
                session.enter(index)
                ahead = None
                if last is not None and index == start_phase:
                    ahead = checkpoint.load(session, last)
                else:
                    check_lengths(session.policy, session.current)
                session.engine.sync(session.policy)
                self._check_engine()
                loop = open_loop(session, ahead)
                self._train_phase(loop)
            self._evaluate("final")
            self._state_findings()
            folder = self._saved_now(loop)
        seconds = self.summary["seconds"]
        seconds["total"] = seconds.get("total", 0.0) + time.time() - started
        return self._finish(folder)

    def _check_engine(self) -> None:
        """Compare an engine that has a model of its own with the trainer, now and from now on."""
        observers = self.session.observers.members
        check = next((one for one in observers if isinstance(one, EngineCheck)), None)
        engine = self.session.engine
        if check is None and isinstance(engine, SeparateEngine) and engine.gap_limit != 0:
            check = EngineCheck(self.session, engine)
            observers.append(check)
        if check is not None:
            check.begin()

    def _train_phase(self, loop: Loop) -> None:
        session, watch = self.session, self.session.settings.watch
        if reason := self.guard.after_step():
            raise stopped(session, reason, "there was nothing new to save")
        if session.phase_step == 0 and self.is_last_phase:
            self._evaluate("start")
        begun = time.time()
        activity = Activity(session)
        watched = bool(watch.activity_steps) and session.phase_step == 0
        if watched:
            session.observers.members.append(activity)
        while session.phase_step < session.settings.steps:
            before = time.time()
            step = loop.step()
            if watched and session.phase_step in (watch.activity_steps, session.settings.steps):
                watched = False
                session.observers.members.remove(activity)
                self._report_activity(activity)
            self._record(step, before)
            reason = self.guard.after_step()
            done = session.phase_step == session.settings.steps
            due = watch.checkpoint_every and session.phase_step % watch.checkpoint_every == 0
            if reason or due or (done and not self.is_last_phase):
                self._write_partial(begun)
                begun = time.time()
                self.recorder.flush()
                folder = self._save(loop)
            if reason:
                raise stopped(session, reason, f"its checkpoint is {str(folder)!r}")
        self._add_seconds(begun)

    def _record(self, step: Step, begun: float) -> None:
        session, watch = self.session, self.session.settings.watch
        metrics = step.metrics
        if watch.heldout_every and session.phase_step % watch.heldout_every == 0:
            metrics = metrics | evaluate_run(StepView.between_steps(session)).metrics()
        timings = {"step": time.time() - begun, **step.seconds}
        self.recorder.step(step.number, session.phase, metrics, timings, step.groups)
        session.bad_rows.write(session.accelerator, session.output)

    def _report_activity(self, activity: Activity) -> None:
        """Write what every slot did so far to events.jsonl, and warn of each slot that did nothing or
        contradicts another one."""
        session = self.session
        found = [*config_findings(session.current), *findings(session.current, activity)]
        self.recorder.event(
            "activity",
            phase=session.phase,
            lines=lines(session.current, activity, found),
            findings=[finding._asdict() for finding in found],
        )
        for finding in found if session.is_main else ():
            if finding.level in BAD:
                session.warn(
                    f"activity of phase {session.phase}, first {session.phase_step} steps: {finding}"
                )

    def _evaluate(self, name: str) -> None:
        """Held-out scores for the summary."""
        begun, summary = time.time(), self.summary
        result = evaluate_run(StepView.between_steps(self.session))
        if not result.accuracy and not result.errors:
            return
        scores, errors = dict(result.accuracy), dict(result.errors)
        summary["heldout"][name] = scores
        if shown := result.first_answers(self.session.settings.watch.heldout_answers):
            summary.setdefault("answers", {})[name] = [answer._asdict() for answer in shown]
        if errors:
            summary.setdefault("heldout_errors", {})[name] = errors
        if result.rewards:
            summary.setdefault("heldout_rewards", {})[name] = dict(result.rewards)
        seconds = summary["seconds"]
        seconds["heldout"] = seconds.get("heldout", 0.0) + time.time() - begun
        self.recorder.event("heldout", name=name, scores=scores, **({"errors": errors} if errors else {}))

    def _state_findings(self) -> None:
        """What the probes of the last phase say about the run, for the summary, the log and the console."""
        session = self.session
        if not session.is_main:
            return
        rows = [row for row in read_record(session.output, METRICS) if row["phase"] == session.phase]
        found: dict[str, dict[str, Any]] = {}
        for slot, plugin in session.current.plugins():
            name = slot.partition(".")[2] or slot
            if (finding := plugin.finding(RunNumbers(name, rows))) is not None:
                found[slot] = finding._asdict()
                self.recorder.event("finding", slot=slot, **finding._asdict())
        if found:
            self.summary["findings"] = found

    def _open_recorder(self, state: dict[str, Any] | None) -> None:
        session = self.session
        watch = session.settings.watch
        self.recorder = Recorder(
            session.output,
            session.config.tree,
            live=watch.live if self.live is None else self.live,
            trackers=watch.trackers,
            decode=session.policy.decode,
            main=session.is_main,
            tracker_rollouts=watch.tracker_rollouts,
        )
        session.observers.members.append(self.recorder)
        if session.is_main:
            write_whole(session.output / "config.yaml", session.config.dump())
        ahead = max((len(part["batches"]) for part in state["collected_ahead"]), default=0) if state else 0
        self.recorder.rewind(state["step"] if state else -1, state.get("events") if state else 0, ahead)

    def _saved_now(self, loop: Loop) -> Path:
        folders = checkpoint.saved(self.session.output)
        if folders and checkpoint.read_state(folders[-1])["step"] == self.session.step:
            return folders[-1]
        return self._save(loop)

    def _save(self, loop: Loop) -> Path:
        loop.drain()
        folder = checkpoint.save(self.session, loop.to_plain(), self.recorder.events)
        if self.session.is_main:
            replaced.discard(self.session.output)
        return folder

    def _add_seconds(self, begun: float) -> None:
        seconds, phase = self.summary["seconds"], self.session.phase
        seconds[phase] = seconds.get(phase, 0.0) + time.time() - begun

    def _write_partial(self, begun: float) -> None:
        self._add_seconds(begun)
        if self.session.is_main:
            write_whole(self.session.output / PARTIAL, json.dumps(self.summary))

    def _finish(self, folder: Path) -> dict[str, Any]:
        session, summary, output = self.session, self.summary, self.session.output
        summary |= {"steps": session.step, "seed": session.seed}
        summary |= {"metrics": str(output / "metrics.jsonl"), "checkpoint": str(folder)}
        summary["seconds"] = {name: round(value, 2) for name, value in summary["seconds"].items()}
        if ahead := overlap_seconds(output):
            summary["overlap"] = ahead
        if session.is_main:
            write_whole(output / "summary.json", json.dumps(summary, indent=2) + "\n")
            try:
                summary["report"] = str(render_report(output))
            except ValueError as error:  # the log of a run that was finished already may be lost
                log.warning("no report was written: %s", error)
            write_whole(output / "summary.json", json.dumps(summary, indent=2) + "\n")
            (output / PARTIAL).unlink(missing_ok=True)
        return summary


PARTIAL = "partial_summary.json"


def stopped(session: Session, reason: str, saved: str) -> StoppedError:
    """The end of a run that was asked to stop; one rank prints it."""
    error = StoppedError(f"stopped by {reason} after step {session.step}; {saved}: go on with --resume")
    error.quiet = not session.is_main
    return error


def last_checkpoint(session: Session, resume: bool) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, chosen by the main process for all ranks, and what was wrong with newer
    ones."""
    found: tuple[Path | None, list[str]] = None, []
    failure: ConfigError | None = None
    if session.is_main:
        try:
            found = _choose_checkpoint(session, resume)
        except ConfigError as error:
            failure = error
    agree(session.accelerator, failure)
    return gather(session.accelerator, [found])[0][0]


def _choose_checkpoint(session: Session, resume: bool) -> tuple[Path | None, list[str]]:
    if not resume:
        check_free(session.output)
        return None, []
    last, notes = checkpoint.newest_intact(session.output)
    if last is None:
        notes.append(f"resume: no checkpoint under {session.output}; starting from the beginning")
    else:
        notes += config_changes(last, session.config, checkpoint.read_state(last)["phase"])
    for note in notes:
        log.warning(note)
    return last, notes


def phase_of(session: Session, state: dict[str, Any]) -> int:
    """The index of a checkpoint's phase. Raises ConfigError where the config has no such phase."""
    names = [phase.phase for phase in session.phases]
    if state["phase"] not in names:
        raise ConfigError(
            f"resume: the checkpoint is of phase {state['phase']!r}, the config has {names}; resume with the "
            "run's own config.yaml"
        )
    return names.index(state["phase"])


def read_partial(output: Path) -> dict[str, Any]:
    """The partial summary of an interrupted run, or the summary of a finished one."""
    for path in (output / PARTIAL, output / "summary.json"):
        try:
            said = json.loads(path.read_bytes())
            names = ("heldout", "seconds", "heldout_errors", "heldout_rewards", "answers")
            return {name: dict(said[name]) for name in names if name in said}
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
    return {}
