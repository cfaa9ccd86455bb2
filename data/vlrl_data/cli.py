"""Look at, check, clean, split and convert datasets."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vlrl.registry import ConfigError, build, names
from vlrl.stages import Sampler, Scaffold, Source
from vlrl.types import Row

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
SourceArg = Annotated[str, typer.Argument(help="a file, a folder, a glob, a .tar, hub:ID[@split], or a source with fields: lab_counting,size=84")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Out = Annotated[Path, typer.Option("--out", "-o", help="where to write")]
Limit = Annotated[int, typer.Option(help="only the first so many rows (0: all)")]


def parse(text: str) -> dict[str, Any]:
    """`name,field=value,...` -> a spec; values are YAML."""
    import yaml

    name, *pairs = re.split(r",(?=\w+=)", text)
    return {"name": name} | {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in pairs)}


def spec_of(text: str) -> dict[str, Any]:
    """What is meant by a place or a source spec."""
    spec = parse(text)
    place, path = spec.pop("name"), Path(re.split(r",(?=\w+=)", text)[0])
    if place in names(Source):
        return {"name": place, **spec}
    if place.startswith("hub:"):
        ident, _, split = place.removeprefix("hub:").partition("@")
        return {"name": "hub", "path": ident, "split": split or "train", **spec}
    if path.is_dir():
        saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        files = any(file.suffix in (".json", ".jsonl", ".parquet", ".arrow", ".csv", ".tsv") and file.stem != "metadata" for file in path.iterdir())
        return {"name": "hub" if saved else "files" if files else "folder", "path": place, **spec}
    return {"name": "webdataset" if path.suffix == ".tar" else "files", "path": place, **spec}


def rows_of(text: str, limit: int = 0, **options: Any) -> Any:
    """The rows of a place or source spec. Raises ConfigError."""
    spec = spec_of(text)
    own = {"max_bad": 1.0} | options if spec["name"] in ("files", "folder", "webdataset", "hub") else {}
    rows = build(Source, {**own, **spec})()
    return rows[:limit] if limit else rows


def say(told: dict[str, Any], as_json: bool, title: str) -> None:
    """Print figures, as JSON or as a table."""
    if as_json:
        typer.echo(json.dumps(told, ensure_ascii=False, default=str))
        return
    table = Table(title=title, show_header=False)
    for name, value in told.items():
        shown = "\n".join(f"{key}: {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, shown, end_section=True)
    Console().print(table)


@app.command()
def stats(source: SourceArg, media: Annotated[bool, typer.Option(help="open the pictures")] = True, limit: Limit = 0, as_json: Json = False) -> None:
    """Rows, tasks, answers, picture sizes, question lengths."""
    from vlrl_data.tools.stats import stats as compute

    say(compute(rows_of(source, limit), media), as_json, source)


@app.command()
def check(
    source: SourceArg,
    level: Annotated[str, typer.Option(help="rows, headers (media are opened) or decode (media are decoded)")] = "decode",
    quarantine: Annotated[str, typer.Option(help="write the unusable rows there")] = "",
    as_json: Json = False,
) -> None:
    """Look at every row and medium; exit code 1 if some cannot be used."""
    spec = spec_of(source)
    made = build(Source, {**({"max_bad": 1.0, "check_level": level, "quarantine": quarantine} if "path" in spec else {}), **spec})
    rows = made()
    found = getattr(rows, "quarantine", None)
    bad = found.rows if found else []
    told: dict[str, Any] = {"usable": len(rows), "unusable": len(bad)}
    if hasattr(made, "chosen"):
        told["format"] = {part.make.stem: " because ".join((part.make.family.name, made.chosen(part.records)[1])) for part in rows.parts}
    if bad:
        told |= {"reasons": found.counts(), "rows": {item.place: item.reason for item in bad[:20]}}
    say(told, as_json, source)
    raise typer.Exit(1 if bad else 0)


@app.command()
def preview(
    source: SourceArg,
    out: Out = Path("preview.html"),
    limit: Limit = 20,
    scaffold: Annotated[str, typer.Option(help="show prompts as this scaffold makes them: chat,style=think")] = "",
) -> None:
    """An HTML page of rows: prompt, pictures with boxes, video frames, answer."""
    from vlrl_data.tools.preview import page

    rows = rows_of(source, check_level="rows")
    maker = build(Scaffold, parse(scaffold)) if scaffold else None
    shown = rows[:limit] if limit else rows
    out.write_text(page(shown, source, f"{len(shown)} of {len(rows)} rows", maker), encoding="utf-8")
    typer.echo(str(out))


@app.command()
def convert(source: SourceArg, out: Out, inside: Annotated[bool, typer.Option("--pack", help="put the media into the file")] = False) -> None:
    """Any record family to our JSON lines."""
    from vlrl_data.convert import pack, write

    typer.echo(f"{(pack if inside else write)(rows_of(source), out)} rows in {out}")


@app.command()
def dedup(source: SourceArg, out: Out, by: str = "both", radius: int = 4, as_json: Json = False) -> None:
    """Drop rows that repeat an earlier one (by: text, image, both; radius: bits of the picture hash that may differ)."""
    from vlrl_data.tools.duplicates import dedup as find

    rows = rows_of(source)
    _drop(rows, find(rows, by, radius), out, as_json, source)


@app.command()
def decontaminate(
    source: SourceArg,
    against: Annotated[list[str], typer.Option(help="evaluation rows (a source; may be given several times)")],
    out: Out,
    n: int = 13,
    radius: int = 4,
    as_json: Json = False,
) -> None:
    """Drop rows that share a run of n words or a look-alike picture with evaluation rows."""
    from vlrl_data.tools.duplicates import decontaminate as find

    rows = rows_of(source)
    suites = [row for place in against for row in rows_of(place, answers="optional")]
    _drop(rows, find(rows, suites, n, radius), out, as_json, source)


def _drop(rows: Any, matches: list[Any], out: Path, as_json: bool, title: str) -> None:
    from vlrl_data.convert import write

    gone = {match.id for match in matches}
    kept: list[Row] = [row for row in rows if row.id not in gone]
    write(kept, out)
    shown = {match.id: f"{match.reason} ({match.other})" for match in matches[: None if as_json else 20]}
    say({"kept": len(kept), "dropped": len(gone), "rows": shown}, as_json, title)


@app.command()
def difficulty(
    runs: Annotated[list[Path], typer.Argument(help="run folders, with rollouts/*.parquet")],
    out: Out,
    slot: Annotated[str, typer.Option(help="the reward that says right or wrong (default: the total)")] = "",
    threshold: float = 0.5,
) -> None:
    """Pass rate per row from a run's rollouts, for `difficulty:` of a source and the `pass_rate` selection."""
    from vlrl_data.tools.difficulty import from_rollouts, merge

    table = merge(from_rollouts(folder, slot, threshold) for folder in runs)
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{len(table)} rows in {out}")


@app.command()
def select(
    runs: Annotated[list[Path], typer.Argument(help="run folders, with rollouts/*.parquet of every step")],
    out: Out,
    score: Annotated[str, typer.Option(help="alignment (LIMR), spread (1-shot RLVR) or accuracy")] = "alignment",
    least: Annotated[float, typer.Option(help="the least score of a chosen row")] = -math.inf,
    most: Annotated[float, typer.Option(help="the largest")] = math.inf,
    top: Annotated[int, typer.Option(help="only the so many best (0: all)")] = 0,
    slot: Annotated[str, typer.Option(help="the reward that says right or wrong (default: the total)")] = "",
) -> None:
    """Rows chosen by how their accuracy went over runs, as a config: `vlrl train CONFIG OUT` trains on these rows alone."""
    from vlrl_data.tools.history import left_out, visits, write_choice

    series: dict[str, list[float]] = {}
    for folder in runs:
        if missing := left_out(folder):
            typer.echo(f"{folder}: {missing} steps kept no rollouts, so visits are missing; train with watch.rollouts_every=1", err=True)
        for name, values in visits(folder, slot).items():
            series.setdefault(name, []).extend(values)
    chosen = build(Sampler, {"name": "by_history", "score": score, "least": least, "most": most, "top": top}).choose(series)
    write_choice(chosen, out)
    typer.echo(f"{len(chosen)} of {len(series)} rows in {out}, scores {min(chosen.values()):.3f} to {max(chosen.values()):.3f}")


@app.command()
def lengths(
    source: SourceArg,
    out: Out,
    processor: Annotated[str, typer.Option(help="a model's hub id or folder")],
    max_tokens: int = 4096,
    scaffold: Annotated[str, typer.Option(help="how prompts are made: chat,style=think")] = "chat",
    as_json: Json = False,
) -> None:
    """Keep the rows whose prompt, with its pictures and videos written out, has at most so many tokens (exact; nothing is cut)."""
    from transformers import AutoProcessor

    from vlrl_data.convert import write
    from vlrl_data.tools.lengths import over_budget, summary

    kept, dropped = over_budget(rows_of(source), build(Scaffold, parse(scaffold)), AutoProcessor.from_pretrained(processor), max_tokens)
    write(kept, out)
    say(summary(kept, dropped, max_tokens), as_json, source)


@app.command()
def split(source: SourceArg, out: Out, parts: str = "train=0.9,heldout=0.1", by: str = "media", seed: int = 0) -> None:
    """Parts that share no picture (or id, or meta field): OUT/train.jsonl, OUT/heldout.jsonl ..."""
    from vlrl_data.convert import write
    from vlrl_data.tools.split import split as divide

    try:
        shares = {name: float(share) for name, _, share in (part.partition("=") for part in parts.split(","))}
    except ValueError:
        raise ConfigError(f"parts: {parts!r} is not of the form train=0.9,heldout=0.1") from None
    for name, rows in divide(rows_of(source), shares, by, seed).items():
        typer.echo(f"{write(rows, out / f'{name}.jsonl')} rows in {out / f'{name}.jsonl'}")


@app.command()
def mixture(
    runs: Annotated[list[Path], typer.Argument(help="folders of finished runs that differ in the weights of their sources")],
    tasks: Annotated[str, typer.Option(help="held-out tasks and how much they count: counting=1,grounding=2 (default: all equally)")] = "",
    floor: Annotated[float, typer.Option(help="least share of a source")] = 0.0,
    as_json: Json = False,
) -> None:
    """The mixture of sources that a quadratic fit over short runs promises most of (MoDoMoDo, arXiv:2505.24871)."""
    from vlrl_data.tools.mixture import propose, read_run

    counts = {name: float(value or 1) for name, _, value in (part.partition("=") for part in tasks.split(",") if part)}
    proposal = propose([read_run(folder) for folder in runs], counts or None, floor)
    say(proposal._asdict(), as_json, "mixture")
    if not as_json:
        typer.echo(" ".join(f"data.train.{name}.weight={share}" for name, share in proposal.shares.items()))
