"""Every family and many presets run on a simulated device whose tensors do not mix with CPU tensors, as a GPU requires."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vlrl.policy import Family
from vlrl.registry import names


@pytest.fixture(scope="module")
def trial():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "fake_device_trial.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.split("RESULT ")[-1])


@pytest.mark.parametrize("name", names(Family))
def test_a_family_gives_the_cpu_s_numbers(trial, name):
    cpu, on_device = trial["cpu"][name], trial["fake_device"][name]
    assert on_device["ids"] == cpu["ids"]
    assert on_device["logp"] == pytest.approx(cpu["logp"], abs=1e-5)
    assert on_device["gradient"] == pytest.approx(cpu["gradient"], rel=1e-4)


def test_presets_take_steps(trial):
    assert len(trial["tokens"]) == 22 and min(trial["tokens"].values()) > 0


def test_the_device_is_strict(trial):
    """Mixing with host tensors and reading without a copy are refused, so the tests above mean something."""
    assert trial["strict"] == [True, True, True]
