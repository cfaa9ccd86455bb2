"""Pages of the site that are made of other files: a page per paper and per entry of the notebook, the table
of papers, the readmes of the packages."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
QUIET = "---\nsearch: {boost: 0.4}\n---\n"  # found, but after the pages that explain
READMES = {  # page of the site: file of the repository
    "packages/data.md": "data/README.md",
    "packages/rewards.md": "rewards/README.md",
    "packages/perception.md": "rewards/PERCEPTION.md",
    "contributing.md": "CONTRIBUTING.md",
}


def made() -> dict[str, str]:
    """Text of every made page, by its place in the site."""
    return {
        **readmes(),
        **papers(),
        **book(DOCS / "LOG.md", "notebook", 2),
        **book(ROOT / "CHANGELOG.md", "changelog", 3),
    }


def readmes() -> dict[str, str]:
    """The readmes, their links to each other and to docs/ turned into links of the site."""
    places = {file: page for page, file in READMES.items()}
    out = {}
    for page, file in READMES.items():
        folder, up = Path(file).parent, "../" * page.count("/")

        def link(found: re.Match[str], folder: Path = folder, up: str = up) -> str:
            target = (folder / found[1]).as_posix()
            if target.startswith("docs/"):
                return f"]({up}{target.removeprefix('docs/')})"
            return f"]({up}{places[target]})" if target in places else found[0]

        text = (ROOT / file).read_text(encoding="utf-8")
        out[page] = re.sub(r"\]\(([\w./-]+\.md)\)", link, text)
    for page, up in ((page, "../" * page.count("/")) for page in out):
        for old, new in (("LOG.md", "notebook/index.md"), ("papers.md", "papers/index.md")):
            out[page] = out[page].replace(f"]({up}{old})", f"]({up}{new})")
    return out


def sections(path: Path, level: int = 2) -> tuple[str, list[tuple[str, str]]]:
    """(text before the first heading of a level, [(heading, text below it)]) of a page."""
    head, *rest = re.split(rf"^{'#' * level} ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return head, [(part.partition("\n")[0], part.partition("\n")[2]) for part in rest]


def papers() -> dict[str, str]:
    """A page per preset, and a table of all of the catalogue that can be searched and filtered."""
    head, entries = sections(DOCS / "papers.md")
    out = {}
    for heading, text in entries:
        name, _, preset = heading.rpartition(": `")
        if not name:  # a section about all papers
            head += f"## {heading}\n{text}"
            continue
        out[f"papers/{preset.rstrip('`')}.md"] = f"{QUIET}# {name}\n\n{text}"
    out["papers/index.md"] = "\n".join([head, *_table(set(out))])
    return out


def _table(there: set[str]) -> list[str]:
    with (DOCS / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        catalogue = {row["id"]: row for row in csv.DictReader(file)}
    lines = [
        '<div class="filterable" data-filter="1,2,3,4" markdown>', "",
        "| method | family | kind | fidelity | shown on | status |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    presets = {path.stem: path for path in sorted((ROOT / "configs" / "methods").glob("*.yaml"))}
    for name in sorted({*presets, *catalogue}):
        row = catalogue.get(name, {})
        about = (
            (yaml.safe_load(presets[name].read_text(encoding="utf-8")) or {}).get("about") or {}
            if name in presets
            else {}
        )
        title = row.get("name") or name
        linked = f"[{title}]({name}.md)" if f"papers/{name}.md" in there else title
        if name in presets:
            status = f"`methods/{name}`"
        elif row.get("reason"):
            status = "outside: " + row["reason"]
        else:
            status = row.get("feature") or "not yet"
        cells = [
            linked,
            row.get("family", ""),
            about.get("kind", ""),
            about.get("fidelity", ""),
            about.get("task", ""),
            status,
        ]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return [*lines, "", "</div>", ""]


def book(path: Path, folder: str, level: int) -> dict[str, str]:
    """A page per section of a long page, and their list."""
    head, entries = sections(path, level)
    out, lines = {}, []
    for number, (heading, text) in enumerate(entries, start=1):
        text = re.sub(r"\]\((?:docs/)?([\w.]+\.md)\)", r"](../\1)", text).replace(
            "](../LOG.md)", "](../notebook/index.md)"
        )
        out[f"{folder}/{number:02d}.md"] = f"{QUIET}# {heading}\n{text}"
        lines.append(f"- [{heading}]({number:02d}.md)")
    return {**out, f"{folder}/index.md": "\n".join([head, *lines, ""])}


def llms(nav: Any, texts: dict[str, str], head: str) -> str:
    """`llms.txt`: the pages of the site in their order, each with its first sentence, for language models."""

    def lines(entry: Any, depth: int) -> list[str]:
        if isinstance(entry, str):
            text = re.sub(
                r"^---\n.*?\n---\n|^ *```.*?^ *```", "", texts[entry], flags=re.DOTALL | re.MULTILINE
            )
            title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), entry)
            prose = re.search(r"^(?![#|<!>=:\[ -]|\d)\S.*?(?:[.:](?=\s)|$)", text, re.MULTILINE)
            place = entry.removesuffix(".md") + ".html"
            return [f"- [{title}]({place}): {prose[0] if prose else ''}".rstrip(": ")]
        parts = list(entry.items()) if isinstance(entry, dict) else [("", part) for part in entry]
        out = []
        for name, part in parts:
            section = [f"\n## {name}\n"] if name and depth == 0 else []
            out += [*section, *lines(part, depth + bool(name))]
        return out

    return "\n".join([head, *lines(nav, 0), ""])
