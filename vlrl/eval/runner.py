"""An evaluation run: estimate the cost, generate the missing responses, score, summarise. The same command
resumes a killed run."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vlrl.eval.card import data_hash, differences, make_card, read_card
from vlrl.eval.generate import (
    GenerationSettings,
    Progress,
    describe_cost,
    elapsed,
    estimate_cost,
    generate_responses,
    pending_samples,
)
from vlrl.eval.grade import Sample, grade
from vlrl.eval.journal import Entry, Journal, read_journal
from vlrl.eval.model import engine_spec, open_model, policy_spec
from vlrl.eval.prompts import PROTOCOLS, check_first_rows, has_media, variant_applies
from vlrl.eval.records import SuiteData, read_records
from vlrl.eval.suite import load_suite
from vlrl.eval.summary import (
    list_items,
    responses_from_file,
    responses_from_journal,
    summarise,
    summarise_suite,
    write_json,
)
from vlrl.plugins.registry import ConfigError, build, suggest
from vlrl.plugins.stages import Engine
from vlrl.policy.family import Family

log = logging.getLogger("vlrl")


@dataclass(frozen=True)
class EvalOptions:
    """The options of `vlrl eval`, as the reproduction card records them. `suites` are names or YAML paths."""

    suites: tuple[str, ...]
    model: str
    engine: str = "hf"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "auto"
    media: str = ""
    limit: int = 0
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 0
    seed: int = 0
    protocol: str = "direct"
    floors: bool = False
    dtype: str = ""

    def __post_init__(self) -> None:
        if not self.suites:
            raise ConfigError(
                "--suite: name at least one, for instance --suite mathvista; `vlrl eval suites` lists them"
            )
        if self.protocol not in PROTOCOLS:
            raise ConfigError(
                f"--protocol: no protocol {self.protocol!r}.{suggest(self.protocol, PROTOCOLS)}"
            )
        if self.samples < 1 or self.temperature < 0:
            raise ConfigError(
                f"--samples must be at least 1 and --temperature not negative, got {self.samples} and "
                f"{self.temperature}"
            )
        if self.samples > 1 and self.temperature == 0:
            raise ConfigError(
                f"--samples {self.samples} at temperature 0 draws the same response every time; give "
                "--temperature, for instance 0.7"
            )

    def generation(self, suites: Sequence[SuiteData]) -> GenerationSettings:
        """How the responses are sampled; `floors` adds the variants."""
        variants = ("plain", *(audit_variants(suites) if self.floors else ()))
        return GenerationSettings(
            self.samples, self.temperature, self.top_p, self.max_tokens, self.seed, self.protocol, variants
        )

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> EvalOptions:
        """The options that a card records."""
        return cls(**{**card["options"], "suites": tuple(card["options"]["suites"])})


def audit_variants(suites: Sequence[SuiteData]) -> tuple[str, ...]:
    """The variants that ask the model again: without the picture, with a wrong picture, and with the options
    moved."""
    media = any(has_media(data) for data in suites)
    return (
        *(("blind", "wrong_picture") if media else ()),
        *(("permuted1",) if any(data.suite.choices for data in suites) else ()),
    )


def read_suites(options: EvalOptions, cache: Path | None = None) -> list[SuiteData]:
    """The records of every suite. Raises ConfigError for two suites of one name: journal and summary tell
    suites apart by it."""
    suites = [load_suite(name) for name in options.suites]
    names = [suite.name for suite in suites]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise ConfigError(
            f"--suite: two suites are named {double!r}; name each once, or rename one of the YAML files"
        )
    return [read_records(suite, options.data, options.media, options.limit, cache) for suite in suites]


def launched_processes() -> tuple[int, int]:
    """(rank, world size) set by a launcher such as torchrun; (0, 1) without one."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


WRITTEN = ("card.json", "journal", "responses", "scores", "summary.json", "report.html")  # what a run writes


def prepare_folder(folder: Path, card: Mapping[str, Any], overwrite: bool) -> None:
    """Makes the run's folder, or resumes the run in it. Raises ConfigError if it holds a run with other
    options."""
    file = folder / "card.json"
    if overwrite and file.is_file():
        for name in WRITTEN:  # not the fixtures that were just read, nor a file of anybody else
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if file.is_file():
        changed = [
            line
            for line in differences(read_card(folder), dict(card))
            if not line.startswith(("versions", "verifier"))
        ]
        if changed:
            raise ConfigError(
                f"--output {folder} holds a run that differs ({'; '.join(changed[:4])}); give another "
                "--output, or --overwrite"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, card)


def run_eval(
    options: EvalOptions,
    folder: Path,
    overwrite: bool = False,
    dry: bool = False,
    report: Callable[[str], None] = log.info,
    prices: tuple[float, float] = (0.0, 0.0),
) -> dict[str, Any]:
    """Generates and scores the responses of a run.

    Args:
        options: What to run.
        folder: The run's folder; a run with the same options in it is resumed.
        overwrite: Delete a run in the folder first.
        dry: Only estimate the cost, with a probe of four requests; nothing is written.
        report: Receives progress messages.
        prices: Per million prompt and response tokens.

    Returns:
        The summary; the cost estimate if `dry`; {} where other processes still generate (the last one writes
        the summary).
    """
    suites = read_suites(options, folder / "fixtures" if folder.exists() else None)
    for data in suites:
        check_first_rows(data, options.protocol)
    check_sees(options, suites)
    settings = options.generation(suites)
    engine = engine_spec(options.engine, options.engine_options)
    if dry:
        return _dry_run(options, suites, settings, engine, prices)
    prepare_folder(
        folder, make_card(suites, options.to_json(), {"model": options.model, "engine": engine}), overwrite
    )
    journal = Journal(folder)
    rank, world = launched_processes()
    pending = pending_samples(suites, settings, journal.entries(), rank, world)
    if pending:
        served = open_model(options.model, engine, options.seed, options.dtype)
        try:
            cost = estimate_cost(suites, pending, settings, served, prices)
            report(f"{len(suites)} suite{'s' * (len(suites) > 1)}: {describe_cost(cost)}")
            started = time.monotonic()
            failed = generate_responses(
                served.engine,
                pending,
                settings,
                journal,
                served.policy,
                progress=_progress_lines(report, started),
            )
            report(
                f"{len(pending)} responses in {elapsed(started)}" + (f", {failed} failed" if failed else "")
            )
        finally:
            served.close()
    left = pending_samples(suites, settings, journal.entries())
    if left and world > 1:
        report(
            f"{len(left)} samples are still with other processes; the last one to finish writes the summary"
        )
        return {}
    return write_results(folder, options, suites, settings)


def check_sees(options: EvalOptions, suites: Sequence[SuiteData]) -> None:
    """Raise ConfigError for a text model on suites with pictures, before it is loaded."""
    engine = build(Engine, engine_spec(options.engine, options.engine_options), "engine")
    shown = [data.suite.name for data in suites if data.suite.media.images or data.suite.media.videos]
    if not shown or not getattr(engine, "needs_policy", True):
        return
    family = build(Family, policy_spec(options.model), "policy")
    if not family.is_multimodal:
        raise ConfigError(
            f"--model {options.model}: family {family.name!r} reads no images, which suite {shown[0]!r} has; "
            "give a vision model"
        )


def _dry_run(
    options: EvalOptions,
    suites: Sequence[SuiteData],
    settings: GenerationSettings,
    engine: Mapping[str, Any],
    prices: tuple[float, float],
) -> dict[str, Any]:
    """The cost of a run from its beginning, with a probe of four requests."""
    pending = pending_samples(suites, settings, {}, *launched_processes())
    served = open_model(options.model, engine, options.seed, options.dtype)
    try:
        return estimate_cost(suites, pending, settings, served, prices, probe=4)
    finally:
        served.close()


def _progress_lines(report: Callable[[str], None], started: float) -> Progress:
    """Reports every failure and about twenty other lines per run; in a terminal, one line that is rewritten
    takes the place of the twenty."""
    live = sys.stderr.isatty()

    def progress(entry: Entry, done: int, total: int) -> None:
        variant = "" if entry.variant == "plain" else " " + entry.variant
        line = f"{done}/{total} {entry.suite}{variant} {elapsed(started)} {entry.error}".rstrip()
        if entry.error or done == total or (not live and done % max(1, total // 20) == 0):
            sys.stderr.write(_CLEAR_LINE if live else "")
            report(line)
        elif live:
            left = (time.monotonic() - started) * (total - done) / done
            sys.stderr.write(f"{_CLEAR_LINE}{_bar(done, total)} {line}, about {left:.0f} s left")
            sys.stderr.flush()

    return progress


_CLEAR_LINE = "\r\x1b[2K"


def _bar(done: int, total: int, width: int = 24) -> str:
    filled = round(width * done / max(total, 1))
    return "━" * filled + "─" * (width - filled)


def write_results(
    folder: Path,
    options: EvalOptions,
    suites: Sequence[SuiteData],
    settings: GenerationSettings,
    profiles: Sequence[str] = (),
) -> dict[str, Any]:
    """Scores the journal by every profile (or those given) and writes scores, responses and summary into the
    run's folder."""
    entries = read_journal(folder / "journal")
    results: list[dict[str, Any]] = []
    for data in suites:
        chosen = list(profiles) or data.suite.default_profiles
        results += summarise_suite(
            data,
            entries,
            chosen,
            options.protocol,
            [v for v in settings.variants if variant_applies(data, v)],
        )
        write_items(folder, data, chosen, options.protocol)
    summary = {
        "model": options.model,
        "engine": options.engine,
        "protocol": options.protocol,
        "samples": options.samples,
        "results": results,
    }
    write_json(folder / "summary.json", summary)
    return summary


def write_items(folder: Path, data: SuiteData, profiles: Sequence[str], protocol: str) -> None:
    """Writes responses/<suite>.jsonl, in the order of the records, and scores/<suite>.<profile>.json with
    every sample's score."""
    name = data.suite.name
    responses = responses_from_journal(folder, name)
    target = folder / "responses" / f"{name}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": key, "response": sample.text}, ensure_ascii=False)
        for key in data.ids
        for sample in responses.get(key, [])
    ]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "scores").mkdir(exist_ok=True)
    for profile in profiles:
        graded = grade(data, responses, profile, protocol)
        write_json(folder / "scores" / f"{name}.{profile.replace(':', '-')}.json", list_items(graded))


def reopen(folder: Path) -> tuple[EvalOptions, list[SuiteData], GenerationSettings]:
    """The options, records and settings of a finished or unfinished run, from its card. Nothing is generated.

    Raises ConfigError if the data are no longer those of the run.
    """
    card = read_card(folder)
    options = EvalOptions.from_card(card)
    suites = []
    for name in options.suites:
        suite = load_suite(name)
        recorded = card["suites"][suite.name]
        where = (
            "fixture" if recorded["origin"] == "fixture" else options.data
        )  # also where the hub can be reached now
        data = read_records(suite, where, options.media, options.limit)
        if data_hash(data) != recorded["data"]:
            was = f"{recorded['origin']}, {recorded['rows']}"
            raise ConfigError(
                f"{folder}: the rows of {suite.name!r} ({data.origin}, {len(data)}) are not those of the "
                f"run ({was})"
            )
        suites.append(data)
    return options, suites, options.generation(suites)


def rescore(
    path: Path,
    profiles: Sequence[str],
    suites: Sequence[str] = (),
    data: str = "auto",
    media: str = "",
    protocol: str = "",
) -> list[dict[str, Any]]:
    """Scores existing responses again: one summary per suite and profile, each with `scores` (mean per id)
    and `items` (every sample).

    Args:
        path: A run's folder, or a JSONL of {"id", "response"} of the one suite in `suites`.
        profiles: Names; empty: the suite's default profiles.
        suites: Names or YAML paths; for a run, those to score (empty: all).
        data: Where the records of a response file are, as for `read_records`.
        media: The media folder of a response file.
        protocol: "direct" or "thinking"; empty: that of the run.

    Raises:
        ConfigError: The path holds no run and no responses, or the suite of a response file is not named.
    """
    jobs: list[tuple[SuiteData, dict[str, list[Sample]]]]
    if path.is_dir():
        options, opened, _ = reopen(path)
        names = {load_suite(name).name for name in suites}
        jobs = [
            (entry, responses_from_journal(path, entry.suite.name))
            for entry in opened
            if not names or entry.suite.name in names
        ]
        protocol = protocol or options.protocol
    else:
        if len(suites) != 1:
            raise ConfigError(f"{path}: a response file belongs to one suite; name it with --suite")
        if not path.is_file():
            raise ConfigError(f"{path}: no such run or response file")
        jobs = [(read_records(load_suite(suites[0]), data, media), responses_from_file(path))]
    return [
        _rescored(entry, responses, profile, protocol or "direct")
        for entry, responses in jobs
        for profile in profiles or entry.suite.default_profiles
    ]


def _rescored(
    data: SuiteData, responses: Mapping[str, Sequence[Sample]], profile: str, protocol: str
) -> dict[str, Any]:
    graded = grade(data, responses, profile, protocol)
    return {
        **summarise(graded),
        "scores": dict(zip(data.ids, graded.scores, strict=True)),
        "items": list_items(graded),
    }
