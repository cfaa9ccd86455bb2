"""Check, preview, clean, split and convert datasets."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vlrl.plugins.registry import ConfigError, build, load_plugin_file, names, renames
from vlrl.plugins.stages import PromptSampler, PromptTemplate, Source
from vlrl.types import Row, RowError
from vlrl_data.quarantine import Quarantine
from vlrl_data.records import SUFFIXES
from vlrl_data.validation import validate_row

RECORD_SOURCES = ("files", "folder", "webdataset", "hub")

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
SourceArg = Annotated[
    str,
    typer.Argument(
        help="a file, a folder, a glob, a .tar, hub:ID[@split], or a source with fields: lab_counting,size=84"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Out = Annotated[Path, typer.Option("--out", "-o", help="where to write")]
Limit = Annotated[int, typer.Option(help="only the first so many rows (0: all)")]


@dataclass(frozen=True)
class RecordOptions:
    """The options of all commands that read rows, as fields of a source of records."""

    media_root: tuple[str, ...] = ()
    fields: dict[str, str] = field(default_factory=dict)

    def of_source(self) -> dict[str, Any]:
        """The fields that are set."""
        return ({"media_root": self.media_root} if self.media_root else {}) | (
            {"fields": self.fields} if self.fields else {}
        )


_RECORD_OPTIONS: ContextVar[RecordOptions] = ContextVar("record_options", default=RecordOptions())  # noqa: B039  # it is frozen
_SHARED = {
    "media_root": Annotated[
        list[str] | None,
        typer.Option("--media-root", help="a folder that relative media paths start from; repeatable"),
    ],
    "fields": Annotated[
        str, typer.Option("--fields", help="columns to rename, theirs=ours: prompt=question,gold=answer")
    ],
    "plugin": Annotated[
        list[Path] | None,
        typer.Option(
            "--plugin", help="a Python file that registers your own sources or templates; repeatable"
        ),
    ],
}


def reads_rows(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options --media-root, --fields and --plugin, which act on every source that it
    reads."""

    @functools.wraps(command)
    def call(
        *args: Any,
        media_root: list[str] | None = None,
        fields: str = "",
        plugin: list[Path] | None = None,
        **options: Any,
    ) -> None:
        for file in plugin or ():
            load_plugin_file(file)
        before = _RECORD_OPTIONS.set(RecordOptions(tuple(media_root or ()), renames(fields)))
        try:
            command(*args, **options)
        finally:
            _RECORD_OPTIONS.reset(before)

    own = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default="" if name == "fields" else None, annotation=kind
        )
        for name, kind in _SHARED.items()
    ]
    signature = own.replace(parameters=[*own.parameters.values(), *more])
    call.__signature__ = signature  # type: ignore[attr-defined]  # what inspect reads first
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return call


def parse(text: str) -> dict[str, Any]:
    """`name,field=value,...` -> a spec; values are YAML."""
    import yaml

    name, *pairs = re.split(r",(?=\w+=)", text)
    return {"name": name} | {
        key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in pairs)
    }


def spec_of(text: str) -> dict[str, Any]:
    """The spec of a source from a path, hub:ID, or a source's name with fields."""
    spec = parse(text)
    name, path = spec.pop("name"), Path(re.split(r",(?=\w+=)", text)[0])
    if name in names(Source):
        return {"name": name, **spec}
    if name.startswith("hub:"):
        dataset, _, split = name.removeprefix("hub:").partition("@")
        return {"name": "hub", "path": dataset, "split": split or "train", **spec}
    if os.path.isdir(path):
        saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        try:
            files = any(
                file.name.lower().endswith(SUFFIXES) and file.stem != "metadata" for file in path.iterdir()
            )
        except OSError as error:
            raise ConfigError(f"{name}: the folder cannot be read: {error.strerror or error}") from None
        return {"name": "hub" if saved else "files" if files else "folder", "path": name, **spec}
    if (
        not path.suffix
        and not path.exists()
        and (near := difflib.get_close_matches(name, names(Source), n=1, cutoff=0.8))
    ):
        raise ConfigError(f"{name}: no file, and no source of that name. Did you mean {near[0]!r}?")
    return {"name": "webdataset" if path.suffix == ".tar" else "files", "path": name, **spec}


def rows_of(text: str, limit: int = 0, **options: Any) -> Any:
    """The usable rows of a path or source spec. Raises ConfigError where there are rows and none is
    usable."""
    spec = spec_of(text)
    if spec["name"] not in RECORD_SOURCES:
        rows = build(Source, spec)()
    else:
        rows = build(Source, options | _RECORD_OPTIONS.get().of_source() | spec).load()
        rows.quarantine.raise_if_above(1.0 if rows else 0.0, total=len(rows) + len(rows.quarantine.rows))
    return rows[:limit] if limit else rows


def report(figures: dict[str, Any], as_json: bool, title: str) -> None:
    """Print figures, as JSON or as a table."""
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False, default=str))
        return
    table = Table(title=title, show_header=False)
    for name, value in figures.items():
        shown = (
            "\n".join(f"{key}: {item}" for key, item in value.items())
            if isinstance(value, dict)
            else str(value)
        )
        table.add_row(name, shown, end_section=True)
    Console().print(table)


@app.command()
@reads_rows
def stats(
    source: SourceArg,
    media: Annotated[bool, typer.Option(help="open the media")] = True,
    limit: Limit = 0,
    as_json: Json = False,
) -> None:
    """Number of rows, tasks, answers, image sizes, question lengths."""
    from vlrl_data.tools.stats import stats as compute

    report(compute(rows_of(source, limit), media), as_json, source)


@app.command()
@reads_rows
def check(
    source: SourceArg,
    level: Annotated[
        str, typer.Option(help="rows, headers (media are opened) or decode (media are decoded)")
    ] = "decode",
    quarantine: Annotated[str, typer.Option(help="file for the unusable rows")] = "",
    as_json: Json = False,
) -> None:
    """Check every row and medium; exit code 1 if some cannot be used."""
    spec = spec_of(source)
    reads_records = spec["name"] in RECORD_SOURCES
    settings = {"check_level": level, "quarantine": quarantine, **_RECORD_OPTIONS.get().of_source()}
    built = build(Source, {**(settings if reads_records else {}), **spec})
    rows = built.load() if reads_records else built()  # without the log line that repeats the report
    figures: dict[str, Any] = {}
    if reads_records:
        found = rows.quarantine
        figures["format"] = {
            part.builder.stem: " because ".join((part.builder.family.name, built.family_of(part.records)[1]))
            for part in rows.parts
        }
        if dropped := rows.dropped_columns():
            figures["dropped columns"] = dropped
        if guesses := rows.guesses():
            figures["assumed"] = guesses
    else:
        found = check_generated(source, rows)
    bad = found.rows
    if bad:
        figures |= {"reasons": found.counts(), "rows": found.examples()}
    report(
        {"usable": len(rows) - (0 if reads_records else len(bad)), "unusable": len(bad)} | figures,
        as_json,
        source,
    )
    raise typer.Exit(1 if bad else 0)


def check_generated(source: str, rows: Sequence[Row]) -> Quarantine:
    """Validate the rows of a source that reads no records; their media are made by code and not opened."""
    found = Quarantine(source)
    for index in range(len(rows)):
        try:
            validate_row(rows[index], "optional")
        except RowError as error:
            found.add(index, f"{source}#{index}", str(error))
    return found


@app.command()
@reads_rows
def preview(
    source: SourceArg,
    out: Out = Path("preview.html"),
    limit: Limit = 20,
    template: Annotated[
        str, typer.Option("--prompt-template", help="show the prompts of this template: chat,style=think")
    ] = "",
) -> None:
    """An HTML page of rows, evenly drawn from all: prompt, images with boxes, video frames, answer; and the
    rows that cannot be used, with the reason."""
    from vlrl_data.tools.preview import evenly, page

    rows = rows_of(source, check_level="rows")
    prompt_template = build(PromptTemplate, parse(template)) if template else None
    shown = evenly(rows, limit or len(rows))
    broken = [(row.location, row.reason) for row in getattr(rows, "quarantine", Quarantine(source)).rows]
    about = f"{len(shown)} of {len(rows)} rows" + (f", {len(broken)} unusable" if broken else "")
    html = page(shown, source, about, prompt_template, broken[: limit or None])
    out.write_text(
        html, encoding="utf-8", errors="backslashreplace"
    )  # the path of a picture that is missing may be no text
    typer.echo(str(out))


@app.command()
@reads_rows
def convert(
    source: SourceArg,
    out: Out,
    packed: Annotated[bool, typer.Option("--pack", help="put the media into the file")] = False,
) -> None:
    """Convert any record family to our JSON lines."""
    from vlrl_data.tools.convert import pack, write

    typer.echo(f"{(pack if packed else write)(rows_of(source), out)} rows in {out}")


@app.command()
@reads_rows
def dedup(source: SourceArg, out: Out, by: str = "both", radius: int = 4, as_json: Json = False) -> None:
    """Drop rows that repeat an earlier one (by: text, image, both; radius: bits of the image hash that may
    differ)."""
    from vlrl_data.tools.duplicates import dedup as find

    rows = rows_of(source)
    _drop(rows, find(rows, by, radius), out, as_json, source)


@app.command()
@reads_rows
def decontaminate(
    source: SourceArg,
    against: Annotated[
        list[str], typer.Option(help="evaluation rows (a source; may be given several times)")
    ],
    out: Out,
    n: int = 13,
    radius: int = 4,
    as_json: Json = False,
) -> None:
    """Drop rows that share an n-gram of words or a similar image with evaluation rows."""
    from vlrl_data.tools.duplicates import decontaminate as find

    rows = rows_of(source)
    suites = [row for suite in against for row in rows_of(suite, answers="optional")]
    _drop(rows, find(rows, suites, n, radius), out, as_json, source)


def _drop(rows: Any, matches: list[Any], out: Path, as_json: bool, title: str) -> None:
    from vlrl_data.tools.convert import write

    dropped = {match.id for match in matches}
    kept: list[Row] = [row for row in rows if row.id not in dropped]
    write(kept, out)
    shown = {match.id: f"{match.reason} ({match.other})" for match in matches[: None if as_json else 20]}
    report({"kept": len(kept), "dropped": len(dropped), "rows": shown}, as_json, title)


@app.command()
def difficulty(
    runs: Annotated[list[Path], typer.Argument(help="run folders, with rollouts/*.parquet")],
    out: Out,
    slot: Annotated[str, typer.Option(help="the reward slot to read (default: the total reward)")] = "",
    correct_at: Annotated[
        float, typer.Option(help="the reward from which on a rollout counts as correct")
    ] = 0.5,
) -> None:
    """Pass rate per row from a run's rollouts, for `difficulty:` of a source and the `pass_rate`
    selection."""
    from vlrl_data.tools.rollout_rewards import merge_pass_rates, pass_rates

    table = merge_pass_rates(pass_rates(folder, slot, correct_at) for folder in runs)
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{len(table)} rows in {out}")


@app.command()
def select(
    runs: Annotated[list[Path], typer.Argument(help="run folders, with rollouts/*.parquet of every step")],
    out: Out,
    score: Annotated[
        str, typer.Option(help="alignment (LIMR), spread (1-shot RLVR) or accuracy")
    ] = "alignment",
    low: Annotated[float, typer.Option(help="minimum score of a chosen row")] = -math.inf,
    high: Annotated[float, typer.Option(help="maximum score of a chosen row")] = math.inf,
    top: Annotated[int, typer.Option(help="number of best rows to choose (0: all)")] = 0,
    slot: Annotated[str, typer.Option(help="the reward slot to read (default: the total reward)")] = "",
) -> None:
    """Rows chosen by their mean reward at each visit over runs, as a config: `vlrl train CONFIG OUT` trains
    on these rows alone."""
    from vlrl_data.tools.rollout_rewards import mean_reward_by_visit, steps_without_rollouts, write_selection

    series: dict[str, list[float]] = {}
    for folder in runs:
        if missing := steps_without_rollouts(folder):
            typer.echo(
                (
                    f"{folder}: {missing} steps kept no rollouts, so visits are missing; train with "
                    "watch.rollouts_every=1"
                ),
                err=True,
            )
        for name, values in mean_reward_by_visit(folder, slot).items():
            series.setdefault(name, []).extend(values)
    chosen = build(
        PromptSampler, {"name": "by_history", "score": score, "low": low, "high": high, "top": top}
    ).choose(series)
    write_selection(chosen, out)
    typer.echo(
        f"{len(chosen)} of {len(series)} rows in {out}, scores {min(chosen.values()):.3f} to "
        f"{max(chosen.values()):.3f}"
    )


@app.command()
@reads_rows
def lengths(
    source: SourceArg,
    out: Out,
    processor: Annotated[str, typer.Option(help="a model's hub id or folder")],
    max_tokens: int = 4096,
    template: Annotated[
        str, typer.Option("--prompt-template", help="the prompt template: chat,style=think")
    ] = "chat",
    as_json: Json = False,
) -> None:
    """Keep the rows whose prompt, with its images and videos, has at most so many tokens (exact; nothing is
    truncated)."""
    from transformers import AutoProcessor

    from vlrl_data.tools.convert import write
    from vlrl_data.tools.lengths import split_by_length, summary

    prompt_template = build(PromptTemplate, parse(template))
    kept, dropped = split_by_length(
        rows_of(source), prompt_template, AutoProcessor.from_pretrained(processor), max_tokens
    )
    write(kept, out)
    report(summary(kept, dropped, max_tokens), as_json, source)


@app.command()
@reads_rows
def split(
    source: SourceArg, out: Out, parts: str = "train=0.9,heldout=0.1", by: str = "media", seed: int = 0
) -> None:
    """Split into parts that share no media (or id, or meta field): OUT/train.jsonl, OUT/heldout.jsonl ..."""
    from vlrl_data.tools.convert import write
    from vlrl_data.tools.split import split as divide

    try:
        shares = {name: float(share) for name, _, share in (part.partition("=") for part in parts.split(","))}
    except ValueError:
        raise ConfigError(f"parts: {parts!r} is not of the form train=0.9,heldout=0.1") from None
    for name, rows in divide(rows_of(source), shares, by, seed).items():
        typer.echo(f"{write(rows, out / f'{name}.jsonl')} rows in {out / f'{name}.jsonl'}")


@app.command()
def mixture(
    runs: Annotated[
        list[Path],
        typer.Argument(help="folders of finished runs that differ in the weights of their sources"),
    ],
    tasks: Annotated[
        str,
        typer.Option(help="held-out tasks and their weights: counting=1,grounding=2 (default: all equal)"),
    ] = "",
    floor: Annotated[float, typer.Option(help="minimum share of a source")] = 0.0,
    as_json: Json = False,
) -> None:
    """The best mixture of sources by a quadratic fit over short runs (MoDoMoDo, arXiv:2505.24871)."""
    from vlrl_data.tools.mixture import propose, read_run

    weights = {
        name: float(value or 1)
        for name, _, value in (part.partition("=") for part in tasks.split(",") if part)
    }
    proposal = propose([read_run(folder) for folder in runs], weights or None, floor)
    report(proposal._asdict(), as_json, "mixture")
    if not as_json:
        typer.echo(" ".join(f"data.train.{name}.weight={share}" for name, share in proposal.shares.items()))
