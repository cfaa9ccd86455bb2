"""Shared fixtures. Everything runs on the CPU, offline, with one thread."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault(
    "TORCH_EXTENSIONS_DIR", os.path.join(tempfile.gettempdir(), f"vlrl-test-extensions-{os.getuid()}")
)

import pytest
from hypothesis import settings
from sweeps import sampled
from warm import warm_python

# the same examples in every run; HYPOTHESIS_PROFILE=explore looks for new ones
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SPENT = pytest.StashKey[float]()
START = sum(os.times()[:4])
NEEDS = "needs the program "
AXE = Path(__file__).parents[1] / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = {"chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")}


@cache
def is_missing(program: str) -> bool:
    """Whether a program is not installed, or (bwrap) may not do its work here. axe-core is a script that the
    browser runs."""
    if program == "axe-core":
        return not AXE.is_file()
    if program == "bwrap":
        from vlrl_rewards.code import isolation

        return bool(isolation.unavailable())
    return not any(shutil.which(name) for name in NAMES.get(program, (program,)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `slow` or `proof` run where `-m` asks for them, whichever folders are run. --sampled
    leaves out most cases of what is marked `sweep`. Tests marked `needs(program)` are skipped where the
    program is not installed."""
    for asked in ("slow", "proof"):
        if asked not in config.option.markexpr:
            config.hook.pytest_deselected(items=[item for item in items if asked in item.keywords])
            items[:] = [item for item in items if asked not in item.keywords]
    if config.option.sampled:
        kept = sampled(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        for mark in item.iter_markers("needs"):
            if missing := [program for program in mark.args if is_missing(program)]:
                item.add_marker(pytest.mark.skip(reason=NEEDS + " or ".join(missing)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test marked `no_program` fails where it looks for a program that `needs` knows, so that it passes on
    a machine without it as well."""
    if item.get_closest_marker("no_program") is None:
        return (yield)
    asked: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        which, known = shutil.which, {"bwrap", "iverilog", "vvp", *NAMES["chromium"]}
        patch.setattr(
            shutil,
            "which",
            lambda program, *more, **named: asked.add(program) or which(program, *more, **named),
        )
        result = yield
    assert not asked & known, f"it looks for {asked & known}: name it in PROGRAMS of tests/task_kit.py"
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="seconds of CPU of each test, with its processes")
    parser.addoption("--sampled", action="store_true", help="of each test marked `sweep` some cases")


def cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """A report knows what was spent since the report before it: set-up, call and tear-down have one each."""
    report = yield
    spent = cpu_seconds()
    report.cpu = spent - item.config.stash.get(SPENT, START)
    item.config.stash[SPENT] = spent
    return report


def write_cpu_times(reports: list[pytest.TestReport], path: Path) -> str:
    """A line for each test, the costliest first; gives back a table of the costliest files."""
    tests, files = Counter(), Counter()
    for report in reports:
        tests[report.nodeid] += report.cpu
        files[report.nodeid.partition("::")[0]] += report.cpu
    path.write_text("".join(f"{spent:.2f}\t{name}\n" for name, spent in tests.most_common()))
    table = [f"{spent:8.1f}  {name}" for name, spent in files.most_common(20)]
    return "\n".join([f"{tests.total():8.1f}  seconds of CPU in {len(tests)} tests", *table])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was asked by --cpu-times; one line with the number of tests that were skipped for each program
    that is not installed."""
    if asked := terminalreporter.config.getoption("--cpu-times"):
        reports = [one for some in terminalreporter.stats.values() for one in some if hasattr(one, "cpu")]
        terminalreporter.write_line(write_cpu_times(reports, Path(asked)))
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    counts = Counter(found[1] for reason in reasons if (found := re.search(NEEDS + r"([\w-]+)", reason)))
    if counts:
        told = ", ".join(f"{program} ({count})" for program, count in sorted(counts.items()))
        terminalreporter.write_line(f"{sum(counts.values())} tests skipped for want of a program: {told}")


def pytest_collection_finish() -> None:
    """What was imported stays until the end: collecting garbage does not go through it again and again, and
    not after every 700 objects."""
    freeze_imports()
    gc.set_threshold(50_000, 20, 20)


def freeze_imports() -> None:
    """Take the modules that were imported since the last call out of the garbage collection."""
    if len(sys.modules) > freeze_imports.modules + 200:
        freeze_imports.modules = len(sys.modules)
        gc.collect()
        gc.freeze()


freeze_imports.modules = 0


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program that takes the arguments of Python and has imported the trainer already (warm.py)."""
    with warm_python(tmp_path_factory.mktemp("warm")) as python:
        yield python


@pytest.fixture(autouse=True, scope="module")
def _imports_stay() -> None:
    """Tests import torch and more when they run."""
    freeze_imports()


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    """What a test draws from a global generator is the same in every run and in any order; VLRL_TEST_SEED
    asks for other numbers."""
    seed = int(os.environ.get("VLRL_TEST_SEED", "0"))
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():  # torch.manual_seed notes the stack for a GPU that is not there
            torch.cuda.manual_seed_all(seed)
