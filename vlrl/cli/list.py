"""`vlrl list`."""

from __future__ import annotations

import contextlib
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

from vlrl.registry import ConfigError, get, load_plugin_file, names, origin, suggest
from vlrl.stages import STAGES

_PAPER = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:[\w./-]*\w|vlrl original", re.IGNORECASE)


def list_plugins(
    kind: Annotated[str, typer.Argument(help="A kind of plug-in (reward, advantage, ...), or `config`. Without it: all kinds.")] = "",
    name: Annotated[str, typer.Argument(help="One plug-in of that kind: its whole description and its fields.")] = "",
    plugin: Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file that registers plug-ins of yours; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """What can be named in a config: every plug-in, in one line each with its paper."""
    for file in plugin or []:
        load_plugin_file(file)
    kinds = known_kinds()
    if kind == "config":
        _configs(as_json)
    elif kind and kind not in kinds:
        raise ConfigError(f"list: no kind of plug-in is called {kind!r}.{suggest(kind, [*kinds, 'config'])}")
    elif name:
        _one(describe(get(kinds[kind], name)), as_json)
    elif kind:
        _table(kind, [describe(get(kinds[kind], known)) for known in names(kinds[kind])], as_json)
    else:
        _kinds(kinds, as_json)


def known_kinds() -> dict[str, type]:
    """All kinds by name: the stages of a step, and the model families."""
    kinds: dict[str, type] = dict(STAGES)
    with contextlib.suppress(ModuleNotFoundError):  # an installation for rewards alone has no torch, and no families
        from vlrl.eval.scorer import Aggregate, Scorer
        from vlrl.policy import Family

        kinds |= {"family": Family, "scorer": Scorer, "aggregate": Aggregate}
    return kinds


def paper_of(doc: str) -> str:
    """The source that a docstring names after "Paper:"; without that word the first one."""
    found = _PAPER.findall(doc.partition("Paper:")[2]) or _PAPER.findall(doc)
    return found[0] if found else ""


def describe(cls: type) -> dict[str, Any]:
    """A plug-in as plain values: kind, name, summary, doc, paper, origin, fields."""
    doc = inspect.getdoc(cls) or ""
    fields = {f.name: {"type": _type(f), "default": _default(f)} for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    return {
        "kind": cls.kind, "name": cls.name, "summary": doc.partition("\n")[0], "doc": doc, "paper": paper_of(doc),  # type: ignore[attr-defined]
        "origin": origin(cls), "fields": fields,
    }  # fmt: skip


def _type(item: dataclasses.Field[Any]) -> str:
    return item.type.__name__ if isinstance(item.type, type) and not hasattr(item.type, "__args__") else str(item.type)


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return repr(item.default)
    return repr(item.default_factory()) if item.default_factory is not dataclasses.MISSING else "(needed)"


def _kinds(kinds: dict[str, type], as_json: bool) -> None:
    rows = [{"kind": kind, "plugins": names(stage), "summary": (inspect.getdoc(stage) or "").partition("\n")[0]} for kind, stage in kinds.items()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("kind", "number", "what it is")
    for row in rows:
        table.add_row(row["kind"], str(len(row["plugins"])), Text(row["summary"]))
    _print(table)
    typer.echo("One kind: vlrl list reward. One plug-in: vlrl list reward iou. The configs: vlrl list config.")


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


def _configs(as_json: bool) -> None:
    from vlrl.config import folders

    rows: dict[str, dict[str, str]] = {}
    for folder in folders():
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder).with_suffix("").as_posix()
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            rows.setdefault(name, {"name": name, "summary": first.lstrip("# ") if first.startswith("#") else "", "paper": "", "origin": str(path)})
    found = [rows[name] for name in sorted(rows)]
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
