"""Benchmark suites during training: the work of the callback `eval`."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.eval.generate import GenerationSettings, generate_responses, pending_samples
from vlrl.eval.grade import grade
from vlrl.eval.journal import Journal
from vlrl.eval.records import SuiteData, read_records
from vlrl.eval.suite import load_suite
from vlrl.eval.summary import select_responses, write_json
from vlrl.plugins.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.trainer.run import Run


@lru_cache(maxsize=64)
def _read(name: str, data: str, media: str, limit: int) -> SuiteData:
    return read_records(load_suite(name), data, media, limit)


def suites_of(options: Any) -> list[SuiteData]:
    """The callback's suites with their records, read once per process."""
    return [_read(name, options.data, options.media, options.limit) for name in options.suites]


def profiles_of(options: Any, data: SuiteData) -> list[str]:
    """The callback's profiles that a suite has; the suite's first default profile if it has none of them."""
    return [name for name in options.profiles if name in data.suite.built] or data.suite.default_profiles[:1]


def check(options: Any) -> None:
    """Reads the records and looks up the profiles of the callback. Raises ConfigError."""
    for data in suites_of(options):
        for name in profiles_of(options, data):
            data.suite.profile(name)
        if not len(data):
            raise ConfigError(f"callbacks.eval: suite {data.suite.name!r} has no rows in {options.data}")


def evaluate(options: Any, run: Run) -> dict[str, float]:
    """Generates the responses that this step's journal lacks, waits for the other processes, and scores.

    Every process generates its share and returns the same metrics: <suite>/<profile>, with /low and /high of
    the interval.
    """
    folder = Path(run.output) / "eval" / f"step-{run.step:06d}"
    suites, journal = suites_of(options), Journal(folder)
    settings = GenerationSettings(
        options.samples,
        options.temperature,
        max_tokens=options.max_tokens,
        seed=options.seed,
        protocol=options.protocol,
    )
    pending = pending_samples(suites, settings, journal.entries(), run.rank, run.ranks)
    run.gather(
        []
        # every process has read the journal before any of them writes to it: their shares depend on what is
        # missing
    )
    with run.policy.gather_params() if run.policy is not None else contextlib.nullcontext():
        failed = generate_responses(run.engine, pending, settings, journal, run.policy)
    failed = sum(run.gather([failed]))  # waits until every process has written its journal
    if failed and run.rank == 0:
        run.warn(
            f"eval at step {run.step}: {failed} responses failed and count as wrong; the reasons are in "
            f"{folder}/journal"
        )
    entries = journal.entries()
    metrics: dict[str, float] = {}
    results = []
    for data in suites:
        for profile in profiles_of(options, data):
            graded = grade(data, select_responses(entries, data.suite.name), profile, options.protocol)
            name = f"{data.suite.name}/{profile}"  # the log puts the slot of the callback before it
            metrics |= {
                name: graded.figures["overall"],
                f"{name}/low": graded.interval.low,
                f"{name}/high": graded.interval.high,
            }
            results.append(
                {
                    "suite": data.suite.name,
                    "profile": profile,
                    "origin": data.origin,
                    "figures": graded.figures,
                    "audit": graded.audit,
                }
            )
    if run.rank == 0:
        write_json(folder / "summary.json", {"step": run.step, "phase": run.phase, "results": results})
        if run.recorder is not None:
            run.recorder.event(
                "eval",
                step=run.step,
                scores={key: value for key, value in metrics.items() if key.count("/") == 1},
            )
    return metrics
