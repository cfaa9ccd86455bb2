"""Benchmark suites during training: the callback `eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from vlrl.eval.generate import GenerationSettings, generate_responses, pending_samples
from vlrl.eval.grade import grade
from vlrl.eval.journal import Journal
from vlrl.eval.records import SuiteData, read_records
from vlrl.eval.suite import load_suite
from vlrl.eval.summary import select_responses, write_json
from vlrl.plugins.contexts import CallbackContext, PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback
from vlrl.types import Group


@register("eval")
@dataclass(frozen=True)
class Eval(Callback):
    """Benchmark suites during training: after every `every`-th step (over all phases), samples responses with
    the run's engine and scores them.

    Metrics: <suite>/<profile>, with /low and /high of its interval; figures and responses go to
    `<output>/eval/step-<n>`. Responses that are in a step's journal are not sampled again, so a restart in
    the middle continues. Every process samples its share.
    vlrl original. `data`, `limit`, `max_tokens`, `protocol` as in `vlrl eval`; `samples` above 1 need a
    `temperature`. Edge: a row whose media are broken counts as wrong. Units: scores in [0, 1].
    """

    suites: tuple[str, ...] = ()
    every: int = 50
    profiles: tuple[str, ...] = ("official", "vlrl")
    data: str = "auto"
    media: str = ""
    limit: int = 0
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 0
    protocol: str = "direct"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.suites:
            raise ConfigError(
                "callbacks.eval.suites: name at least one suite (`vlrl eval suites` lists them)"
            )
        if self.every < 1:
            raise ConfigError(f"callbacks.eval.every: {self.every} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        check_suites(self)  # unknown suites, profiles and unreadable data stop the run before it starts

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        if run.step % self.every:
            return {}
        return evaluate(self, run)


@lru_cache(maxsize=64)
def _read(name: str, data: str, media: str, limit: int) -> SuiteData:
    return read_records(load_suite(name), data, media, limit)


def suites_of(options: Eval) -> list[SuiteData]:
    """The callback's suites with their records, read once per process."""
    return [_read(name, options.data, options.media, options.limit) for name in options.suites]


def profiles_of(options: Eval, data: SuiteData) -> list[str]:
    """The callback's profiles that a suite has; the suite's first default profile if it has none of them."""
    return [name for name in options.profiles if name in data.suite.built] or data.suite.default_profiles[:1]


def check_suites(options: Eval) -> None:
    """Reads the records and looks up the profiles of the callback. Raises ConfigError."""
    for data in suites_of(options):
        for name in profiles_of(options, data):
            data.suite.profile(name)
        if not len(data):
            raise ConfigError(f"callbacks.eval: suite {data.suite.name!r} has no rows in {options.data}")


def evaluate(options: Eval, run: CallbackContext) -> dict[str, float]:
    """Generates the responses that this step's journal lacks, waits for the other processes, and scores.

    Every process generates its share and returns the same metrics: <suite>/<profile>, with /low and /high of
    the interval.
    """
    folder = run.output / "eval" / f"step-{run.step:06d}"
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
    with run.policy.gather_params():
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
        scores = {key: value for key, value in metrics.items() if key.count("/") == 1}
        run.event("eval", {"step": run.step, "scores": scores})
    return metrics
