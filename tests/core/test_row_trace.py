"""How many files a row passes between its draw and the optimizer, counted by a trace of the calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import vlrl_data
import vlrl_rewards

import vlrl
from vlrl.config import load
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import train_step
from vlrl.types import Row

PACKAGES = tuple(str(Path(package.__file__).parent) for package in (vlrl, vlrl_data, vlrl_rewards))


def is_row(value: object) -> bool:
    return isinstance(value, Row) or (isinstance(value, (list, tuple)) and bool(value) and is_row(value[0]))


@contextmanager
def files_that_get_rows() -> Iterator[set[str]]:
    """The files of our packages with a function that is given a row, or a list of them."""
    found: set[str] = set()

    def called(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(name != "self" and is_row(frame.f_locals.get(name)) for name in names):
                found.add(code.co_filename)

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


def test_a_row_passes_at_most_nine_files(tmp_path):
    small = ["phases.rl.prompts_per_step=4", "group_size=4", "sampling.max_tokens=4", f"output={tmp_path}"]
    session = Session(Plan.of(load(["experiments/lab_counting"], small)))
    session.open()
    session.enter(1)
    session.engine.sync(session.policy)
    with files_that_get_rows() as found:
        train_step(session)
    session.close()
    assert 6 <= len(found) <= 9, sorted(found)


def test_the_trace_sees_what_it_counts():
    from vlrl_data.validation import validate_row

    with files_that_get_rows() as found, pytest.raises(ValueError):
        validate_row(Row("r", "", None))
    assert {Path(name).name for name in found} == {"validation.py"}
