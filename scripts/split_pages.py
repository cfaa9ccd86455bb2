"""Keeps the notebook and the changelog short: `python scripts/split_pages.py [--check]`.

docs/LOG.md and CHANGELOG.md hold the newest entries. Where one has more than 400 lines, its oldest entries
move to files of their own in docs/notebook and docs/changelog, one each, until 300 lines are left. `--check`
moves nothing; exit code 1 where a page has more than 400 lines.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST, LEFT = 400, 300
BOOKS = {  # file: (folder of the old entries, level of an entry's heading, whether the newest is first)
    "docs/LOG.md": ("docs/notebook", 2, False),
    "CHANGELOG.md": ("docs/changelog", 3, True),
}


def sections(text: str, level: int) -> tuple[str, list[tuple[str, str]]]:
    """(text before the first heading of a level, [(heading, text below it)]) of a page."""
    head, *rest = re.split(rf"^{'#' * level} ", text, flags=re.MULTILINE)
    return head, [(part.partition("\n")[0], part.partition("\n")[2]) for part in rest]


def moved(text: str, source: Path, target: Path) -> str:
    """Text with its relative links fitted to another place."""

    def fit(found: re.Match[str]) -> str:
        return (
            f"]({os.path.relpath((ROOT / source).parent / found[1], (ROOT / target).parent)}{found[2] or ''})"
        )

    return re.sub(r"\]\((?![a-z]+:|#)([\w./-]+)(#[\w-]+)?\)", fit, text)


def split(text: str, name: str, there: int) -> tuple[str, dict[str, str]]:
    """(what stays of a book, files of the entries that move); `there`: how many have moved before."""
    folder, level, newest_first = BOOKS[name]
    head, entries = sections(text, level)
    out: dict[str, str] = {}
    while len(text.splitlines()) > (LEFT if out else LONGEST) and len(entries) > 1:
        heading, body = entries.pop(-1 if newest_first else 0)
        slug = "_".join(re.findall(r"[a-z0-9]+", heading.lower()))[:50].rstrip("_")
        place = f"{folder}/{there + len(out) + 1:03d}_{slug}.md"
        out[place] = moved(f"# {heading}\n{body}".rstrip() + "\n", Path(name), Path(place))
        text = head + "".join(f"{'#' * level} {title}\n{below}" for title, below in entries)
    return text, out


def long_pages() -> dict[str, int]:
    """Lines of every page that has too many, by its place."""
    folders = [path for path in (ROOT, ROOT / "data", ROOT / "rewards") for path in path.glob("*.md")]
    pages = [*folders, *(ROOT / "docs").rglob("*.md")]
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in pages
    }
    return {page: count for page, count in sorted(lines.items()) if count > LONGEST}


def main() -> None:
    """Move old entries; tell which pages are too long."""
    for name, (folder, _, _) in BOOKS.items() if "--check" not in sys.argv else ():
        path = ROOT / name
        there = len(list((ROOT / folder).glob("[0-9]*.md")))
        text, files = split(path.read_text(encoding="utf-8"), name, there)
        (ROOT / folder).mkdir(exist_ok=True)
        for place, entry in files.items():
            (ROOT / place).write_text(entry, encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    if long := long_pages():
        sys.exit(f"more than {LONGEST} lines: {long}")


if __name__ == "__main__":
    main()
