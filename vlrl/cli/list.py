"""`vlrl list`: kinds of plug-ins, plug-ins, configs."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlrl.cli.words import complete_kind
from vlrl.config import SLOTS, folders
from vlrl.plugins.kinds import KINDS, stage_named
from vlrl.plugins.registry import ConfigError, get, load_plugin_file, names, origin, suggest

_PAPER = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:[\w./-]*\w|vlrl\s+original", re.IGNORECASE)


def list_plugins(
    kind: Annotated[
        str,
        typer.Argument(
            help=(
                "A kind of plug-in (reward, policy_loss, ...), a config slot, or `config`. Without it: all "
                "kinds."
            ),
            autocompletion=complete_kind,
        ),
    ] = "",
    name: Annotated[
        str, typer.Argument(help="One plug-in of that kind, or a folder of configs: what it is, in full.")
    ] = "",
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", help="A Python file that registers your own plug-ins; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List plug-ins, one line each with the paper."""
    for file in plugin or []:
        load_plugin_file(file)
    kind = SLOTS.get(kind, kind)
    if kind == "config":
        _configs(name, as_json)
    elif kind and kind not in KINDS:
        raise ConfigError(f"list: no kind of plug-in is called {kind!r}.{suggest(kind, [*KINDS, 'config'])}")
    elif name:
        if name not in names(stage_named(kind)):
            raise ConfigError(f"list: no {kind} named {name!r}.{suggest(name, names(stage_named(kind)))}")
        _one(row_of(get(stage_named(kind), name)), as_json)
    elif kind:
        _table(kind, rows_of(kind), as_json)
    else:
        _kinds(as_json)


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Every plug-in of a kind as plain values, sorted by name."""
    stage = stage_named(kind)
    return [row_of(get(stage, name)) for name in names(stage)]


def row_of(cls: Any) -> dict[str, Any]:
    """A plug-in as plain values."""
    doc = inspect.getdoc(cls) or ""
    return {
        "kind": cls.kind,
        "name": cls.name,
        "summary": first_paragraph(doc),
        "doc": doc,
        "paper": paper_of(doc) or paper_of(sys.modules[cls.__module__].__doc__ or ""),
        "origin": origin(cls),
        "fields": {
            f.name: {"type": _type(f), "default": _default(f)} for f in dataclasses.fields(cls) if f.init
        },
    }


def first_paragraph(doc: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((doc or "").partition("\n\n")[0].split())


def paper_of(doc: str) -> str:
    """The source that a docstring names after "Paper:"; without that word the first one."""
    found = _PAPER.findall(doc.partition("Paper:")[2]) or _PAPER.findall(doc)
    return " ".join(found[0].split()) if found else ""


def _type(item: dataclasses.Field[Any]) -> str:
    return (
        item.type.__name__
        if isinstance(item.type, type) and not hasattr(item.type, "__args__")
        else str(item.type)
    )


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return repr(item.default)
    return repr(item.default_factory()) if item.default_factory is not dataclasses.MISSING else "(required)"


def _kinds(as_json: bool) -> None:
    stages = {kind: stage_named(kind) for kind in KINDS}
    rows = [
        {"kind": kind, "summary": first_paragraph(inspect.getdoc(stage))} for kind, stage in stages.items()
    ]
    if as_json:
        typer.echo(json.dumps([{**row, "plugins": names(stages[row["kind"]])} for row in rows], indent=2))
        return
    table = Table("kind", "what it is")
    for row in rows:
        table.add_row(row["kind"], Text(row["summary"]))
    _print(table)
    typer.echo(
        "One kind: vlrl list reward. One plug-in: vlrl list reward iou. The configs: vlrl list config."
    )


def _table(kind: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(kind, "what it does", "paper")
    for row in rows:
        table.add_row(row["name"], Text(row["summary"]), row["paper"])
    _print(table)


def _one(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    typer.echo(f"{row['kind']} {row['name']}  ({row['origin']})\n\n{row['doc']}\n")
    for name, field in row["fields"].items():
        typer.echo(f"  {name}: {field['type']} = {field['default']}")


def config_rows() -> list[dict[str, str]]:
    """Every shipped config: name, first line, file; sorted by name."""
    rows: dict[str, dict[str, str]] = {}
    for folder in folders():
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder).with_suffix("").as_posix()
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            rows.setdefault(
                name,
                {
                    "name": name,
                    "summary": first.lstrip("# ") if first.startswith("#") else "",
                    "paper": "",
                    "origin": str(path),
                },
            )
    return [rows[name] for name in sorted(rows)]


def _configs(name: str, as_json: bool) -> None:
    rows = config_rows()
    inside = [row for row in rows if row["name"].startswith(f"{name.rstrip('/')}/")] if name else rows
    found = inside or [row for row in rows if row["name"] == name]
    if not found:
        known = {row["name"] for row in rows} | {row["name"].rpartition("/")[0] for row in rows} - {""}
        raise ConfigError(f"list config: no config or folder named {name!r}.{suggest(name, sorted(known))}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif name and not inside:
        typer.echo(f"{found[0]['name']}  ({found[0]['origin']})\n\n{found[0]['summary']}")
    elif name:
        table = Table("config", "what it is")
        for row in found:
            table.add_row(row["name"], Text(row["summary"]))
        _print(table)
    else:
        _config_folders(found)


def _config_folders(rows: list[dict[str, str]]) -> None:
    """The folders of configs with their sizes, and what is asked next."""
    counts = Counter(row["name"].rpartition("/")[0] for row in rows)
    table = Table("folder", "configs", "for instance")
    for folder, count in sorted(counts.items()):
        some = [row["name"] for row in rows if row["name"].rpartition("/")[0] == folder][:3]
        table.add_row(folder or "(top)", str(count), Text(", ".join(some)))
    _print(table)
    typer.echo("One folder: vlrl list config methods. One config: vlrl list config methods/dapo.")


def _print(table: Table) -> None:
    console = Console()
    # a pipe has no width: one line per plug-in, nothing cut
    (console if console.is_terminal else Console(width=1000)).print(table)
