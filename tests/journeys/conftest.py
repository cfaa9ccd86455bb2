import resource
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    for item in items:
        if "journeys" in item.path.parts:
            item.add_marker(pytest.mark.journey)
            item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(autouse=True)
def _within_its_time():
    """A journey takes less than five minutes: of CPU time, so that a busy machine does not count."""
    before = _cpu_seconds()
    yield
    assert _cpu_seconds() - before < 300


def _cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
