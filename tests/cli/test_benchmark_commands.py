"""Every benchmark that can be run prints its docstring for -h and --help, and refuses what it does not know
in one line, before it works."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import cli
from vlrl.plugins import registry

FOLDER = Path(cli.__file__).parent
MODULES = sorted(file.stem for file in FOLDER.glob("*.py") if "__main__" in file.read_text(encoding="utf-8"))
NAMES = {  # what is named on the command line, and what a line about an unknown name says
    "data": (["--kind", "nonsense"], "no kind named 'nonsense'; known: jsonl"),
    "decoding": (["nonsense"], "no shape named 'nonsense'"),
    "gpu": (["nonsense"], "no check named 'nonsense'"),
    "growth": (["nonsense"], "no curve named 'nonsense'"),
    "learning_curves": (["FOLDER", "nonsense"], "no family named 'nonsense'"),
    "limit": (["nonsense"], "no shape named 'nonsense'"),
    "plan": (["nonsense"], "no case named 'nonsense'"),
    "reward_models": (["FOLDER", "nonsense"], "no arm named 'nonsense'; known: rule, scalar"),
    "rollout": (["--case", "nonsense"], "no case named 'nonsense'"),
    "scaling": (["nonsense"], "no part named 'nonsense'"),
    "step": (["nonsense"], "no case named 'nonsense'"),
    "sync_bytes": (["nonsense"], "no model named 'nonsense'"),
    "teachers": (["FOLDER", "nonsense"], "no part named 'nonsense'; known: one, two, spans"),
    "true_shapes": (["nonsense"], "no model named 'nonsense'"),
    "two_nodes": (["nonsense"], "no layout named 'nonsense'"),
    "whole_step": (["FOLDER", "--model", "nonsense"], "no model named 'nonsense'"),
}
MISTAKES = [
    ("teachers", ["FOLDER", "seeds=a"], "seeds=a: expected whole numbers"),
    ("teachers", ["FOLDER", "divergence=up"], "no divergence named 'up'"),
    ("teachers", ["FOLDER", "seed=1"], "no setting named 'seed'; known: seeds, divergence"),
    ("teachers", ["one"], "name the folder of the runs first, as in FOLDER one"),
    ("reward_models", ["FOLDER", "task=smol"], "no task named 'smol'; known: lab, smollm2"),
    ("reward_models", ["FOLDER", "lr=fast"], "lr=fast: expected a number above 0, as in lr=0.1"),
    ("reward_models", ["FOLDER", "learned=40,80"], "learned=40,80: expected a whole number, as in"),
    ("reward_models", ["FOLDER", "cold=-5"], "cold=-5: expected a whole number, as in"),
    ("reward_models", [], "name the folder of the runs first, as in FOLDER"),
    ("learning_curves", ["FOLDER", "engine=tgi"], "no engine named 'tgi'; known: hf"),
    ("judgements", ["many", "0.1"], "'count'"),
    ("judgements", ["10"], "'share'"),
    ("rollout", ["--side", "nonsense"], "no side named 'nonsense'"),
    ("soak", [], "required: steps"),
]


def registered_by(module: str) -> list[tuple[dict, str, type]]:
    tables = registry._TABLE.values()
    return [(table, name, cls) for table in tables for name, cls in table.items() if cls.__module__ == module]


@contextmanager
def as_program(module: str) -> Iterator[None]:
    """A module's plug-ins are registered by `__main__` inside, and as before behind it."""
    own = registered_by(module)
    for table, name, _ in own:
        del table[name]
    yield
    for table, name, _ in registered_by("__main__"):
        del table[name]
    for table, name, cls in own:
        table[name] = cls


@pytest.fixture
def ended(monkeypatch, capsys, tmp_path):
    """What running a module as a program ends with: (exit code, stdout, stderr). It may leave no file."""
    monkeypatch.chdir(tmp_path)

    def run(module: str, words: list[str]) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", [module, *words])
        monkeypatch.delitem(sys.modules, f"benchmarks.{module}", raising=False)
        with as_program(f"benchmarks.{module}"), pytest.raises(SystemExit) as end:
            runpy.run_module(f"benchmarks.{module}", run_name="__main__", alter_sys=True)
        assert not list(tmp_path.iterdir())
        return end.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("module", MODULES)
def test_help_and_unknown_options(module, ended):
    doc = ast.get_docstring(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))) or ""
    for word in ("-h", "--help"):
        code, said, wrong = ended(module, [word])
        assert (code or 0, wrong) == (0, "")
        lines = [line.strip() for line in said.splitlines()]
        assert all(line.strip() in lines for line in doc.splitlines())
    code, said, wrong = ended(module, ["FOLDER", "--no-such-option"])
    assert (code, said, wrong.count("\n")) == (2, "", 1)
    assert wrong.startswith(f"benchmarks.{module}: ")


@pytest.mark.parametrize(
    ("module", "words", "line"), [*((name, *case) for name, case in NAMES.items()), *MISTAKES]
)
def test_a_mistake_is_one_line(module, words, line, ended):
    code, said, wrong = ended(module, words)
    assert (code, said, wrong.count("\n")) == (2, "", 1)
    assert line in wrong and wrong.startswith(f"benchmarks.{module}: ")
