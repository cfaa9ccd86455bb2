"""The reference of the site, made from the package: keys of a config, plug-ins, metrics."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import metrics
from pages import QUIET

from vlrl.cli.list import rows_of
from vlrl.cli.schema import key_docs
from vlrl.config import MAP_SLOTS, OTHER_KEYS, SLOTS
from vlrl.config.settings import Optimizer, Settings, Watch
from vlrl.plugins.kinds import KINDS, stage_named

ROOT = Path(__file__).parents[2]


@cache
def made() -> dict[str, str]:
    """Text of every page, by its place in the site."""
    return {"reference/config.md": config_page(), "reference/metrics.md": metrics_page(), **plugin_pages()}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table; line breaks and bars in cells are taken out."""
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in [head, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(head) + "|", *lines[1:], ""]


def plain(text: str) -> str:
    """Text of a docstring for a cell: nothing in it is Markdown."""
    return re.sub(r"([\\\[\]*_`<>#])", r"\\\1", text)


def settings() -> dict[str, tuple[str, str]]:
    """Dotted key -> (type, default) of every setting that belongs to no plug-in."""
    out = {}
    for head, cls in (("", Settings), ("optimizer.", Optimizer), ("watch.", Watch)):
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if field.name not in ("optimizer", "watch"):
                default = "{}" if field.default is dataclasses.MISSING else repr(field.default)
                out[head + field.name] = (type_name(hints[field.name]), default)
    return out


def type_name(hint: Any) -> str:
    """`int`, or the choices of a Literal."""
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return re.sub(r"\b(typing|collections\.abc)\.", "", text)


@cache
def readers(key: str) -> list[str]:
    """Modules of vlrl/ that read a setting."""
    name = re.compile(rf"\b(?:settings|watch|optimizer|options|spec)\.{key.rpartition('.')[2]}\b")
    found = []
    for path in sorted((ROOT / "vlrl").rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if (
            "/papers/" not in module
            and "/config/" not in module
            and name.search(path.read_text(encoding="utf-8"))
        ):
            found.append(module)
    return sorted(found, key=lambda module: not module.startswith("vlrl/trainer/"))


def config_page() -> str:
    """Every key: type, default, unit, meaning, readers; every slot with its kind of plug-in."""
    rows = []
    for key, (kind, default) in settings().items():
        doc = key_docs()[key]
        read = ", ".join(f"`{module}`" for module in readers(key)[:3])
        rows.append([f"`{key}`", doc["means"], f"`{kind}`", f"`{default}`", doc["unit"], read])
    slots = [
        [
            f"`{slot}`",
            key_docs()[slot]["means"],
            f"[{kind}](plugins/{kind}/index.md)",
            "map" if slot in MAP_SLOTS else "one",
        ]
        for slot, kind in SLOTS.items()
    ]
    others = [[f"`{key}`", key_docs()[key]["means"]] for key in ("extends", *OTHER_KEYS)]
    return "\n".join([
        "# Keys of a config", "",
        "Made from the dataclasses. `vlrl show CONFIG` prints each value with the file that set it.",
        "`vlrl schema` writes a JSON schema, with which an editor completes keys and marks mistakes.", "",
        "## Settings", "",
        "A setting may stand at the top of a config or in a phase. Defaults are those of the package;",
        "shipped configs set many of them (`configs/base/rl.yaml`).", "",
        *table(["key", "what it means", "type", "default", "unit", "read by"], rows),
        "## Slots", "",
        "A slot holds a plug-in: `slot: {name: ..., field: value}`. A map holds several, each under a name",
        "of its own: `rewards: {mine: {name: iou}}`.", "",
        *table(["slot", "what it does", "plug-ins", "holds"], slots),
        "## Other keys", "",
        *table(["key", "what it means"], others),
    ])  # fmt: skip


def metrics_page() -> str:
    """The glossary, then the metrics of single plug-ins."""
    rows = [
        [f"`{name}`", *(entry[key] for key in ("means", "healthy", "otherwise"))]
        for name, entry in metrics.glossary().items()
    ]
    own = [
        [f"`{m.name}`", f"`{m.owner}`", plain(m.summary)]
        for m in metrics.logged()
        if not metrics.described(m.name)
    ]
    return "\n".join([
        "# Metrics", "",
        "What the numbers in `metrics.jsonl`, in the report and in trackers mean. In a name, `*` stands for",
        "a slot, a task or a reason.", "",
        *table(["metric", "what it means", "healthy", "if not"], rows),
        "## Metrics of single plug-ins", "",
        "Logged only where the plug-in is in the config. `*` in front of the slash is the name of its slot.",
        "The docstring of the plug-in says more: `vlrl list KIND NAME`.", "",
        *table(["metric", "class", "what the plug-in does"], own),
    ])  # fmt: skip


def plugin_pages() -> dict[str, str]:
    """A page per plug-in, a table per kind, and the list of kinds."""
    out, kinds = {}, []
    for kind in KINDS:
        rows = rows_of(kind)
        first = plain(" ".join((stage_named(kind).__doc__ or "").partition("\n\n")[0].split()))
        kinds.append([f"[{kind}]({kind}/index.md)", str(len(rows)), first])
        listed = [[f"[{row['name']}]({row['name']}.md)", plain(row["summary"]), row["paper"]] for row in rows]
        body = [f"# Plug-ins: {kind}", "", first, "", *table(["name", "what it does", "paper"], listed)]
        out[f"reference/plugins/{kind}/index.md"] = "\n".join(body)
        out |= {f"reference/plugins/{kind}/{row['name']}.md": plugin_page(row) for row in rows}
    head = ["# Plug-ins", "", "`vlrl list KIND NAME` prints the same in a terminal.", ""]
    out["reference/plugins/index.md"] = "\n".join([*head, *table(["kind", "plug-ins", "what it is"], kinds)])
    return out


def plugin_page(row: dict[str, Any]) -> str:
    """One plug-in: its docstring and its fields."""
    fields = [
        [f"`{name}`", f"`{field['type']}`", f"`{field['default']}`"] for name, field in row["fields"].items()
    ]
    origin = re.sub(r"^.*/(?=(vlrl|rewards|data)/)", "", row["origin"])
    return "\n".join([
        f"{QUIET}# {row['name']} ({row['kind']})", "", "```text", row["doc"].replace("```", "'''"), "```", "",
        *(table(["field", "type", "default"], fields) if fields else ["It has no fields.", ""]),
        f"Defined in `{origin}`.", "",
    ])  # fmt: skip
