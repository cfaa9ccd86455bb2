"""The runs of a comparison are forked from one process that has done the imports, where that is safe."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

from vlrl.compare.run import process_context

PREPARED = """
import os, sys, threading
import vlrl.compare.prepared
import torch
assert threading.active_count() == 1, threading.enumerate()
tasks = "/proc/self/task"
assert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1, os.listdir(tasks)
assert not torch.cuda.is_initialized()
assert {"transformers.modeling_utils", "accelerate", "vlrl.training", "vlrl.compare.work"} <= set(sys.modules)
assert {"vlrl.engine.hf.engine", "vlrl.logging.report", "scipy.special", "pydantic"} <= set(sys.modules)
assert "transformers.models.auto.image_processing_auto" in sys.modules
assert "accelerate.state" not in sys.modules or not sys.modules["accelerate.state"].PartialState._shared_state
print("safe to fork")
"""  # noqa: E501

FORKED = """
import os, sys
from vlrl.compare.run import _apart, process_context


def seen():
    return os.getpid(), os.getppid(), "vlrl.training" in sys.modules


if __name__ == "__main__":
    context = process_context()
    first, second = _apart(context, seen), _apart(context, seen)
    # processes of their own, with one parent that is not this one
    assert first[0] != second[0] and first[1] == second[1] != os.getpid()
    assert first[2] and second[2], "imported before they were forked"
    try:
        _apart(context, int, "x")
    except ValueError as error:
        print("raised:", error)
"""  # noqa: E501


@pytest.mark.parametrize(
    "omp,blas,method",
    [(None, None, "forkserver"), ("1", "1", "forkserver"), ("4", None, "spawn"), ("1", "2", "spawn")],
)
def test_processes_with_threads_are_not_forked(monkeypatch, omp, blas, method):
    for name, value in (
        ("OMP_NUM_THREADS", omp),
        ("OPENBLAS_NUM_THREADS", blas),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    assert process_context().get_start_method() == method
    assert os.environ["OMP_NUM_THREADS"] == (omp or "1"), (
        "one thread per run, unless the environment says otherwise"
    )


def test_the_prepared_process_gets_the_plug_ins_that_were_checked(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    import vlrl.methods.core.advantage  # noqa: F401  # as building a plan's plug-ins does

    context, preload = multiprocessing.get_context("forkserver"), []
    monkeypatch.setattr(context, "set_forkserver_preload", preload.extend)
    process_context()
    assert preload[0] == "vlrl.compare.prepared" and "vlrl.methods.core.advantage" in preload


def test_the_prepared_process_is_safe_to_fork():
    done = subprocess.run(
        [sys.executable, "-c", PREPARED],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.stdout == "safe to fork\n", done.stderr


def test_each_run_is_a_fork_of_the_prepared_process(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.stdout == "raised: invalid literal for int() with base 10: 'x'\n", done.stderr
