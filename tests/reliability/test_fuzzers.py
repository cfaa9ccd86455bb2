"""The fuzzers themselves, for a few seconds: they find nothing, and they do find a fault that is put in."""

import importlib.util
import logging
import sys

import pytest
from reliability_kit import ROOT

from vlrl.trainer.checkpoints import checkpoint


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def logging_is_back():
    yield
    logging.disable(logging.NOTSET)


def test_rows(monkeypatch, capsys):
    fuzz = script("fuzz_rows")
    monkeypatch.setattr(sys, "argv", ["fuzz_rows.py", "--seconds", "3", "--policy", "text"])
    assert fuzz.main() == 0, capsys.readouterr().out
    assert "usable" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*sys.argv[:2], "1", *sys.argv[3:]])
    monkeypatch.setattr(fuzz.Trainer, "verdict", lambda self, row: "a fault" if row.system else "")
    assert fuzz.main() > 0 and "training does not: a fault" in capsys.readouterr().out


def test_checkpoints(monkeypatch, capsys):
    fuzz = script("fuzz_checkpoints")
    monkeypatch.setattr(sys, "argv", ["fuzz_checkpoints.py", "--seconds", "4"])
    assert fuzz.main() == 0, capsys.readouterr().out
    assert " 0 faults" in capsys.readouterr().out
    monkeypatch.setattr(
        checkpoint, "newest_intact", lambda output: (checkpoint.folders(output)[-1], [])
    )  # checksums are not looked at
    monkeypatch.setattr(
        fuzz,
        "damage",
        lambda path, kind, pick: path.write_bytes(b"") if path.name == "model.safetensors" else None,
    )
    monkeypatch.setattr(
        fuzz.random.Random,
        "sample",
        lambda self, files, n: [f for f in files if "step-000005/model" in f.as_posix()],
    )
    assert fuzz.main() > 0
