"""The modules that make the site's pages, imported from the checkout."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = (
    "metrics",
    "pages",
    "reference",
    "hooks",
    "make_papers_doc",
    "split_pages",
)  # other tests have modules of these names too


@cache
def made(name: str):
    """A module of scripts/site or scripts."""
    folder = ROOT / "scripts" / "site"
    if not folder.is_dir():
        pytest.skip("scripts/ is part of the checkout, not of the wheel")
    others = {other: sys.modules.pop(other) for other in NAMES if other in sys.modules}
    sys.path[:0] = [str(folder), str(folder.parent)]
    try:
        return __import__(name)
    finally:
        for place in (folder, folder.parent):
            sys.path.remove(str(place))
        for own in NAMES:
            sys.modules.pop(own, None)
        sys.modules.update(others)
