"""Every family and many presets work on a device whose tensors do not mix with the CPU's: what a GPU asks of the code, without one."""

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
        [sys.executable, str(Path(__file__).parent / "elsewhere_trial.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.split("RESULT ")[-1])


@pytest.mark.parametrize("name", names(Family))
def test_a_family_gives_the_cpu_s_numbers(trial, name):
    cpu, away = trial["cpu"][name], trial["elsewhere"][name]
    assert away["ids"] == cpu["ids"]
    assert away["logp"] == pytest.approx(cpu["logp"], abs=1e-5)
    assert away["gradient"] == pytest.approx(cpu["gradient"], rel=1e-4)


def test_presets_take_steps(trial):
    assert len(trial["tokens"]) == 22 and min(trial["tokens"].values()) > 0


def test_the_device_is_strict(trial):
    """Mixing with host tensors and reading without a copy are refused, so the tests above mean something."""
    assert trial["strict"] == [True, True, True]
