"""Writes docs/methods.md from the catalogue of papers, the presets and the registry: `python
scripts/make_methods_doc.py [--check]`."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

import yaml

from vlrl.cli.list import rows_of
from vlrl.plugins.stages import STAGES

ROOT = Path(__file__).parents[1]
HEAD = """# Methods

Made by `scripts/make_methods_doc.py`; do not edit. A paper is a preset: `vlrl train tasks/lab_counting
methods/ID`, `vlrl show methods/ID`. Fidelity: `code` was checked against the authors' released code, `paper`
follows its equations, `approximate` names in the preset what is ours.
"""


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in [head, *rows]]
    return [f"| {lines[0]} |", "|---" * len(head) + "|", *(f"| {line} |" for line in lines[1:]), ""]


def presets() -> dict[str, dict]:
    """`about` of every preset, by id."""
    trees = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for path in sorted((ROOT / "configs" / "methods").glob("*.yaml"))
    }
    return {name: tree.get("about") or {} for name, tree in trees.items()}


def papers(known: dict[str, dict]) -> list[str]:
    """The catalogue, family by family, and the presets that are not in it."""
    with (ROOT / "docs" / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kinds = Counter(str(known[row["id"]].get("kind", "?")) for row in rows if row["id"] in known)
    working, outside = (
        sum(status(row, known).startswith("works") for row in rows),
        sum(bool(row["reason"]) for row in rows),
    )
    rest = len(rows) - working - outside
    lines = [
        "## Papers",
        "",
        (
            f"{len(rows)} papers: {working} work, {outside} are outside what the package can host, {rest} "
            "are "
            "not yet built."
        ),
        "",
    ]
    told = ", ".join(f"{kinds[kind]} {kind}s" for kind in ("method", "recipe", "probe"))
    lines += [
        f"Of the presets among them, {told}: a recipe has values and data only, a probe measures only.",
        "",
    ]
    for family in dict.fromkeys(row["family"] for row in rows):
        members = [row for row in rows if row["family"] == family]
        lines += [
            (
                f"### {family} ({sum(status(row, known).startswith('works') for row in members)} of "
                f"{len(members)})"
            ),
            "",
        ]
        lines += table(
            ["id", "method", "paper", "status"],
            [[row["id"], row["name"], row["title"], status(row, known)] for row in members],
        )
    others = [name for name in known if name not in {row["id"] for row in rows}]
    about = [
        [name, str(known[name].get("paper", "")), str(known[name].get("fidelity", ""))] for name in others
    ]
    return [*lines, "### Classics and variants", "", *table(["preset", "source", "fidelity"], about)]


def status(row: dict[str, str], known: dict[str, dict]) -> str:
    """What there is of a paper."""
    if row["id"] in known:
        about = known[row["id"]]
        return f"works ({about.get('kind', '?')}, {about.get('fidelity', '?')}): `methods/{row['id']}`"
    if row["feature"]:
        return f"works: {row['feature']}"
    return f"not built: {row['reason']}" if row["reason"] else "not yet"


def plugins() -> list[str]:
    """The plug-ins of every stage, with their first line and paper."""
    lines = ["## Plug-ins", ""]
    for kind in STAGES:
        rows = [[row["name"], row["summary"], row["paper"]] for row in rows_of(kind)]
        lines += [f"### {kind} ({len(rows)})", "", *table(["name", "what it is", "source"], rows)]
    return lines


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *papers(presets()), *plugins()]).rstrip() + "\n"


if __name__ == "__main__":
    target = ROOT / "docs" / "methods.md"
    if "--check" in sys.argv:
        sys.exit(
            0
            if target.read_text(encoding="utf-8") == render()
            else "docs/methods.md is stale: run python scripts/make_methods_doc.py"
        )
    target.write_text(render(), encoding="utf-8")
