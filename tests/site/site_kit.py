"""The modules that make the site's pages, imported from the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def made(name: str):
    """A module of scripts/site."""
    folder = ROOT / "scripts" / "site"
    if not folder.is_dir():
        pytest.skip("scripts/ is part of the checkout, not of the wheel")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return __import__(name)
