"""Suites in the middle of training: the work of the callback `eval`."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.eval.collect import Draw, collect, missing
from vlrl.eval.grade import grade
from vlrl.eval.journal import Journal
from vlrl.eval.rows import Rows, read
from vlrl.eval.suite import load
from vlrl.eval.summary import pick, write_json
from vlrl.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.trainer.run import Run


@lru_cache(maxsize=64)
def _rows(name: str, data: str, media: str, limit: int) -> Rows:
    return read(load(name), data, media, limit)


def rows_of(options: Any) -> list[Rows]:
    """The rows of the callback's suites, read once per process."""
    return [_rows(name, options.data, options.media, options.limit) for name in options.suites]


def draw_of(options: Any) -> Draw:
    """How the callback draws."""
    return Draw(options.samples, options.temperature, max_tokens=options.max_tokens, seed=options.seed, protocol=options.protocol)


def check(options: Any) -> None:
    """Read the rows and look up the profiles. Raises ConfigError."""
    for rows in rows_of(options):
        for name in profiles_of(options, rows):
            rows.suite.profile(name)
        if not len(rows):
            raise ConfigError(f"callbacks.eval: suite {rows.suite.name!r} has no rows in {options.data}")


def profiles_of(options: Any, rows: Rows) -> list[str]:
    """Those of the callback's profiles that a suite has; its first one if it has none of them."""
    return [name for name in options.profiles if name in rows.suite.built] or rows.suite.usual[:1]


def evaluate(options: Any, run: Run) -> dict[str, float]:
    """Draw what this step's journal lacks, wait for the other processes, score. Every process returns the same numbers."""
    folder = Path(run.output) / "eval" / f"step-{run.step:06d}"
    all_rows, draw, journal = rows_of(options), draw_of(options), Journal(folder)
    accelerator = getattr(run, "accelerator", None)
    rank, world = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
    with run.policy.gather_params() if hasattr(run.policy, "whole") else contextlib.nullcontext():
        failed = collect(run.engine, missing(all_rows, draw, journal, rank, world), draw, journal, run.policy)
    if failed:
        run.warn(f"eval at step {run.step}: {failed} responses failed and count as wrong; the reasons are in {folder}/journal")
    if accelerator is not None:
        accelerator.wait_for_everyone()
    entries = journal.entries()
    metrics: dict[str, float] = {}
    results = []
    for rows in all_rows:
        for profile in profiles_of(options, rows):
            graded = grade(rows, pick(entries, rows.suite.name), profile, options.protocol)
            name = f"{rows.suite.name}/{profile}"  # the log puts the slot of the callback before it
            metrics |= {name: graded.figures["overall"], f"{name}/low": graded.interval.low, f"{name}/high": graded.interval.high}
            results.append({"suite": rows.suite.name, "profile": profile, "origin": rows.origin, "figures": graded.figures, "audit": graded.audit})
    if rank == 0:
        write_json(folder / "summary.json", {"step": run.step, "phase": run.phase, "results": results})
        if run.recorder is not None:
            run.recorder.event("eval", step=run.step, scores={key: value for key, value in metrics.items() if key.count("/") == 1})
    return metrics
