"""`vlrl list`. Shipped plug-ins are read from the index, so that neither they nor torch are imported."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlrl.cli.words import complete_kind
from vlrl.config import SLOTS
from vlrl.plugins.index import PluginEntry, entries
from vlrl.plugins.registry import ConfigError, load_plugin_file, origin, registered, suggest
from vlrl.plugins.stages import STAGES, Stage

_PAPER = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:[\w./-]*\w|vlrl\s+original", re.IGNORECASE)
_OTHER_KINDS = {  # kinds that are no stage of a step: package of the plug-ins, description
    "family": (
        "vlrl.policy.families",
        "Model families: loading, prompt encoding, positions, coordinates. Config slot `policy`.",
    ),
    "scorer": ("vlrl.eval.scorers", "Scores one response of a benchmark suite."),
    "aggregate": ("vlrl.eval.aggregates", "Figures of a benchmark suite from its scored responses."),
}


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
        str, typer.Argument(help="One plug-in of that kind: its description and its fields.")
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
        _configs(as_json)
    elif kind and kind not in (*STAGES, *_OTHER_KINDS):
        raise ConfigError(
            f"list: no kind of plug-in is called {kind!r}.{suggest(kind, [*STAGES, *_OTHER_KINDS, 'config'])}"
        )
    elif name:
        rows = {row["name"]: row for row in rows_of(kind)}
        if name not in rows:
            raise ConfigError(f"list: no {kind} named {name!r}.{suggest(name, rows)}")
        _one(rows[name], as_json)
    elif kind:
        _table(kind, rows_of(kind), as_json)
    else:
        _kinds(as_json)


def names_of(kind: str) -> list[str]:
    """The names of a kind's plug-ins, sorted."""
    home = STAGES[kind].home if kind in STAGES else _OTHER_KINDS[kind][0]
    own = registered(STAGES[kind]) if kind in STAGES else {}
    return sorted({*own, *(name for entry_kind, name in entries(home) if entry_kind == kind)})


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Every plug-in of a kind as plain values, sorted by name: shipped ones from the index, others from their
    classes."""
    home = STAGES[kind].home if kind in STAGES else _OTHER_KINDS[kind][0]
    rows = {
        name: _from_index(entry) for (entry_kind, name), entry in entries(home).items() if entry_kind == kind
    }
    if kind in STAGES:
        rows |= {name: _from_class(cls) for name, cls in registered(STAGES[kind]).items() if name not in rows}
    return [rows[name] for name in sorted(rows)]


def first_paragraph(doc: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((doc or "").partition("\n\n")[0].split())


def paper_of(doc: str) -> str:
    """The source that a docstring names after "Paper:"; without that word the first one."""
    found = _PAPER.findall(doc.partition("Paper:")[2]) or _PAPER.findall(doc)
    return " ".join(found[0].split()) if found else ""


def _row(
    kind: str, name: str, doc: str, paper: str, place: str, fields: dict[str, dict[str, str]]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "summary": first_paragraph(doc),
        "doc": doc,
        "paper": paper,
        "origin": place,
        "fields": fields,
    }


def _from_index(entry: PluginEntry) -> dict[str, Any]:
    fields = {
        f.name: {"type": f.type, "default": "(required)" if f.default is None else f.default}
        for f in entry.fields
    }
    return _row(
        entry.kind,
        entry.name,
        entry.doc,
        paper_of(entry.doc) or paper_of(entry.module_doc),
        entry.origin,
        fields,
    )


def _from_class(cls: type[Stage]) -> dict[str, Any]:
    doc = inspect.getdoc(cls) or ""
    fields = {f.name: {"type": _type(f), "default": _default(f)} for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]  # plug-ins are dataclasses
    return _row(cls.kind, cls.name, doc, paper_of(doc), origin(cls), fields)


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
    summaries = {kind: first_paragraph(inspect.getdoc(stage)) for kind, stage in STAGES.items()}
    summaries |= {kind: summary for kind, (_, summary) in _OTHER_KINDS.items()}
    rows = [
        {"kind": kind, "plugins": names_of(kind), "summary": summary} for kind, summary in summaries.items()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("kind", "plug-ins", "what it is")
    for row in rows:
        table.add_row(str(row["kind"]), str(len(row["plugins"])), Text(str(row["summary"])))
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
    from vlrl.config import folders

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


def _configs(as_json: bool) -> None:
    found = config_rows()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("config", "what it is", "file")
    for row in found:
        table.add_row(row["name"], Text(row["summary"]), row["origin"])
    _print(table)


def _print(table: Table) -> None:
    console = Console()
    # a pipe has no width: one line per plug-in, nothing cut
    (console if console.is_terminal else Console(width=1000)).print(table)
