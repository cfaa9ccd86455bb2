"""Data of the fixtures, written once per session."""

from __future__ import annotations

import pytest

from vlrl.eval import load_suite
from vlrl.eval.records import read_records


@pytest.fixture(scope="session")
def fixture_data(tmp_path_factory):
    """The data of a suite's fixture, by suite name."""
    cache, known = tmp_path_factory.mktemp("fixtures"), {}

    def data(name):
        if name not in known:
            known[name] = read_records(load_suite(name), "fixture", cache=cache)
        return known[name]

    return data
