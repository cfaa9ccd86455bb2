"""The modules that make the site's pages, imported from the checkout."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("metrics", "pages", "reference", "hooks")  # other tests have modules of these names too


@cache
def made(name: str):
    """A module of scripts/site."""
    folder = ROOT / "scripts" / "site"
    if not folder.is_dir():
        pytest.skip("scripts/ is part of the checkout, not of the wheel")
    others = {other: sys.modules.pop(other) for other in NAMES if other in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(folder))
        for own in NAMES:
            sys.modules.pop(own, None)
        sys.modules.update(others)
