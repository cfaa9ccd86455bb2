"""A run of evaluation: plan, draw what is missing, score, summarise. Killed at any point, the same command goes on from there."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vlrl.eval.card import data_hash, differences, make_card, read_card
from vlrl.eval.collect import Draw, clock, collect, missing
from vlrl.eval.grade import grade
from vlrl.eval.journal import Entry, Journal
from vlrl.eval.model import engine_spec, open_model
from vlrl.eval.plan import plan
from vlrl.eval.prompts import PROTOCOLS
from vlrl.eval.rows import Rows, read
from vlrl.eval.suite import load, names
from vlrl.eval.summary import items, moved, of_journal, summarise_suite, write_json
from vlrl.registry import ConfigError, suggest

log = logging.getLogger("vlrl")


@dataclass(frozen=True)
class Options:
    """What `vlrl eval` was asked to do. Everything here is on the reproduction card."""

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
            raise ConfigError(f"--suite: name at least one. Known: {', '.join(names())}")
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"--protocol: no protocol {self.protocol!r}.{suggest(self.protocol, PROTOCOLS)}")
        if self.samples < 1 or self.temperature < 0:
            raise ConfigError(f"--samples must be at least 1 and --temperature not negative, got {self.samples} and {self.temperature}")
        if self.samples > 1 and self.temperature == 0:
            raise ConfigError(f"--samples {self.samples} at temperature 0 draws the same response every time; give --temperature, for instance 0.7")

    def draw(self, all_rows: Sequence[Rows]) -> Draw:
        variants = ("plain", *(variants_of(all_rows) if self.floors else ()))
        return Draw(self.samples, self.temperature, self.top_p, self.max_tokens, self.seed, self.protocol, variants)


def variants_of(all_rows: Sequence[Rows]) -> tuple[str, ...]:
    """The audits that need the model: without its picture, with a wrong one, with its options moved."""
    media = any(rows.suite.media.images or rows.suite.media.videos for rows in all_rows)
    return (*(("blind", "wrong_picture") if media else ()), *(("permuted1",) if any(rows.suite.choices for rows in all_rows) else ()))


def read_all(options: Options, cache: Path | None = None) -> list[Rows]:
    """The rows of every suite."""
    return [read(load(name), options.data, options.media, options.limit, cache) for name in options.suites]


def processes() -> tuple[int, int]:
    """(rank, world) of a launcher such as torchrun; (0, 1) without one."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def prepare(folder: Path, card: Mapping[str, Any], overwrite: bool) -> None:
    """Make the run's folder, or go on in it. Raises ConfigError if it holds a run of other options."""
    known = folder / "card.json"
    if overwrite and known.is_file():
        shutil.rmtree(folder)
    if known.is_file():
        changed = [line for line in differences(read_card(folder), dict(card)) if not line.startswith(("versions", "verifier"))]
        if changed:
            raise ConfigError(f"--output {folder} holds a run that differs ({'; '.join(changed[:4])}); give another --output, or --overwrite")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(known, card)


def run(options: Options, folder: Path, overwrite: bool = False, dry: bool = False, say: Callable[[str], None] = log.info,
        prices: tuple[float, float] = (0.0, 0.0)) -> dict[str, Any]:  # fmt: skip
    """Draw and score. Returns the summary, or the plan if `dry`."""
    all_rows = read_all(options, folder / "fixtures" if folder.exists() else None)
    draw = options.draw(all_rows)
    engine = engine_spec(options.engine, options.engine_options)
    card = make_card(all_rows, plain_options(options), {"model": options.model, "engine": engine})
    if not dry:
        prepare(folder, card, overwrite)
    journal = Journal(folder) if not dry else None
    rank, world = processes()
    todo = missing(all_rows, draw, journal or _Nothing(), rank, world)
    if todo or dry:
        served = open_model(options.model, engine, options.seed, options.dtype)
        try:
            costs = plan(all_rows, todo, draw, served, prices, probe=4 if dry else 0)
            if dry:
                return costs
            say(_opening(costs, len(all_rows)))
            started = time.monotonic()
            failed = collect(served.engine, todo, draw, journal, served.policy, progress=_told(say, started))
            say(f"{len(todo)} responses in {clock(started)}" + (f", {failed} failed" if failed else ""))
        finally:
            served.close()
    left = missing(all_rows, draw, journal)
    if left and world > 1:
        say(f"{len(left)} samples are still with other processes; the last one to finish writes the summary")
        return {}
    return finish(folder, options, all_rows, draw)


class _Nothing:
    """An empty journal."""

    def entries(self) -> dict:
        return {}


def _opening(costs: dict[str, Any], suites: int) -> str:
    from vlrl.eval.plan import describe

    return f"{suites} suite{'s' * (suites > 1)}: {describe(costs)}"


def _told(say: Callable[[str], None], started: float) -> Callable[[Entry, int, int], None]:
    def progress(entry: Entry, done: int, total: int) -> None:
        if entry.error or done == total or done % max(1, total // 20) == 0:
            say(f"{done}/{total} {entry.suite}{'' if entry.variant == 'plain' else ' ' + entry.variant} {clock(started)} {entry.error}".rstrip())

    return progress


def plain_options(options: Options) -> dict[str, Any]:
    """Options as JSON holds them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(options).items()}


def finish(folder: Path, options: Options, all_rows: Sequence[Rows], draw: Draw, profiles: Sequence[str] = ()) -> dict[str, Any]:
    """Score what the journal holds by every profile (or those given) and write scores, responses and summary into the run's folder."""
    journal = Journal(folder)
    entries = journal.entries()
    results: list[dict[str, Any]] = []
    for rows in all_rows:
        chosen = list(profiles) or rows.suite.usual
        results += summarise_suite(rows, entries, chosen, options.protocol, [v for v in draw.variants if applies(rows, v)])
        write_items(folder, rows, chosen, options.protocol)
    summary = {"model": options.model, "engine": options.engine, "protocol": options.protocol, "samples": options.samples, "results": results}
    write_json(folder / "summary.json", summary)
    return summary


def applies(rows: Rows, variant: str) -> bool:
    """Whether a variant changes anything for a suite."""
    needs_media = variant in ("blind", "wrong_picture")
    return bool(rows.suite.media.images or rows.suite.media.videos) if needs_media else variant == "plain" or bool(rows.suite.choices)


def write_items(folder: Path, rows: Rows, profiles: Sequence[str], protocol: str) -> None:
    """responses/<suite>.jsonl, sorted by row, and scores/<suite>.<profile>.json with every verdict."""
    import json

    responses = of_journal(folder, rows.suite.name)
    target = folder / "responses" / f"{rows.suite.name}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": name, "response": s.text}, ensure_ascii=False) for name in rows.ids for s in responses.get(name, [])]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "scores").mkdir(exist_ok=True)
    for profile in profiles:
        graded = grade(rows, responses, profile, protocol)
        write_json(folder / "scores" / f"{rows.suite.name}.{profile.replace(':', '-')}.json", items(graded))


def reopen(folder: Path) -> tuple[Options, list[Rows], Draw]:
    """The options, rows and draw of a finished or unfinished run, from its card. Nothing is generated.

    Raises ConfigError if the data are no longer those that the run was made with.
    """
    card = read_card(folder)
    stored = {**card["options"], "suites": tuple(card["options"]["suites"])}
    options = Options(**stored)
    all_rows = []
    for name in options.suites:
        known = card["suites"][name]
        where = "fixture" if known["origin"] == "fixture" else options.data  # a hub that is there again is not what was asked
        rows = read(load(name), where, options.media, options.limit)
        if data_hash(rows) != known["data"]:
            raise ConfigError(
                f"{folder}: the rows of {name!r} ({rows.origin}, {len(rows)}) are not those of the run ({known['origin']}, {known['rows']})"
            )
        all_rows.append(rows)
    return options, all_rows, options.draw(all_rows)


__all__ = ["Options", "finish", "moved", "read_all", "reopen", "run"]
