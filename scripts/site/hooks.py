"""What MkDocs calls while it builds the site: adds the pages that are made from the package, and fits links.

A page that is made is written nowhere in the repository: `pages.py` splits the long pages and takes in the
readmes of the packages, `reference.py` lists configs, plug-ins, metrics and errors.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import method_pages  # noqa: E402
import pages  # noqa: E402
import reference  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

_PAGE_OF_FILE = {
    "LOG.md": "notebook/index.md",
    "papers.md": "papers/index.md",
}
_LINK = re.compile(r"\]\(([\w./-]+\.md)(#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the made pages."""
    for path, text in {**pages.made(), **method_pages.made(), **reference.made()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Send links to pages that the site splits to their index; rank old entries of the books lower."""
    if page.file.src_uri.startswith(("notebook/", "changelog/")):
        page.meta.setdefault("search", {"boost": 0.4})  # found, but after the pages that explain
    up = "../" * page.file.src_uri.count("/")

    def place(found: re.Match[str]) -> str:
        target = _PAGE_OF_FILE.get(found[1])
        return f"]({up}{target})" if target and page.file.src_uri.count("/") == 0 else found[0]

    return _LINK.sub(place, markdown)


def on_post_build(config: Any) -> None:
    """Write `llms.txt` beside the pages."""
    written = {path.relative_to(pages.DOCS).as_posix(): path for path in pages.DOCS.rglob("*.md")}
    texts = {place: path.read_text(encoding="utf-8") for place, path in written.items()}
    head = (
        f"# {config['site_name']}\n\n> {config['site_description']}\n\nFirst: AGENTS.md of the repository.\n"
    )
    text = pages.llms(
        config["nav"], {**texts, **pages.made(), **method_pages.made(), **reference.made()}, head
    )
    (Path(config["site_dir"]) / "llms.txt").write_text(text, encoding="utf-8")
