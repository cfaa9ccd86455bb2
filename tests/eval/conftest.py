"""Rows of the fixtures, drawn once."""

from __future__ import annotations

import pytest
from vlrl.eval.rows import read

from vlrl.eval import load


@pytest.fixture(scope="session")
def fixture_rows(tmp_path_factory):
    """Rows of a suite's fixture, by suite name."""
    cache, known = tmp_path_factory.mktemp("fixtures"), {}

    def rows(name):
        if name not in known:
            known[name] = read(load(name), "fixture", cache=cache)
        return known[name]

    return rows
