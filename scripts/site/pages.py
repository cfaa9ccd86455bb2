"""Pages of the site that are made of other files: a page per paper and per entry of the notebook, the table
of papers, the readmes of the packages."""

from __future__ import annotations

import re
import sys
from functools import cache
from os.path import normpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import make_papers_doc  # noqa: E402
from split_pages import sections  # noqa: E402

DOCS = ROOT / "docs"
QUIET = "---\nsearch: {boost: 0.4}\n---\n"  # found, but after the pages that explain
READMES = {  # page of the site: file of the repository
    "packages/data.md": "data/README.md",
    "packages/rewards.md": "rewards/README.md",
    "packages/perception.md": "rewards/PERCEPTION.md",
    "contributing.md": "CONTRIBUTING.md",
}


@cache
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
            target = normpath(folder / found[1])
            if target.startswith("docs/"):
                return f"]({up}{target.removeprefix('docs/')})"
            return f"]({up}{places[target]})" if target in places else found[0]

        text = (ROOT / file).read_text(encoding="utf-8")
        out[page] = re.sub(r"\]\(([\w./-]+\.md)\)", link, text)
    for page, up in ((page, "../" * page.count("/")) for page in out):
        for old, new in (("LOG.md", "notebook/index.md"), ("papers.md", "papers/index.md")):
            out[page] = out[page].replace(f"]({up}{old})", f"]({up}{new})")
    return out


def papers() -> dict[str, str]:
    """A page per paper, and a table of all of them that is searched and filtered."""
    texts = {f"papers/{name}.md": QUIET + text for name, text in make_papers_doc.pages().items()}
    title, _, rest = make_papers_doc.render().partition("\n\n")
    rest = rest.replace("](LOG.md)", "](../notebook/index.md)").replace(
        "[papers.csv](papers.csv)", "`docs/papers.csv`"
    )
    head = [
        "---\nhide: [toc]\n---",
        title,
        "",
        "Every paper of the catalogue. [Methods](../methods/index.md) explains thirty.",
    ]
    return {**texts, "papers/index.md": "\n".join([*head, "", *_table(), "## How to read it", "", rest])}


def _table() -> list[str]:
    columns = ("family", "task", "kind", "fidelity", "modality", "needs", "status")
    head, rule = f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"
    lines = [
        '<div class="filterable" data-filter="1,2,3,4,5,6,7" markdown>',
        "",
        head,
        rule,
    ]
    for row in make_papers_doc.listed():
        cells = [f"[{row['name']}]({row['id']}.md)<br>`{row['id']}`", *(row[column] for column in columns)]
        cells[5] = ", ".join(cells[5].split()) or "any"
        cells[7] = cells[7].partition(":")[0]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, "", "</div>", ""]


def book(path: Path, folder: str, level: int) -> dict[str, str]:
    """A page per entry of a book (`scripts/split_pages.py`), and the list of all, the newest first."""
    head, entries = sections(path.read_text(encoding="utf-8"), level)
    old = sorted((DOCS / folder).glob("[0-9]*.md"))
    first = {page.name: page.read_text(encoding="utf-8").partition("\n")[0][2:] for page in old}
    ordered = reversed(entries) if level == 3 else entries
    out = {}
    for number, (heading, text) in enumerate(ordered, start=len(old) + 1):
        text = re.sub(r"\]\((?:docs/)?([\w.]+\.md)\)", r"](../\1)", text)
        text = text.replace("](../LOG.md)", "](../notebook/index.md)")
        out[f"{folder}/{number:03d}.md"] = f"{QUIET}# {heading}\n{text}"
        first[f"{number:03d}.md"] = heading
    lines = [f"- [{heading}]({name})" for name, heading in reversed(first.items())]
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
