"""Every family and many presets run on a simulated device whose tensors do not mix with CPU tensors, as a GPU
requires."""

import json
import subprocess
from pathlib import Path

import pytest

from vlrl.plugins.registry import names
from vlrl.policy import Family


@pytest.mark.parametrize(
    ("words", "count"), [((), 11), pytest.param(("--all",), 22, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_families_and_presets_on_a_strict_device(warm, words, count):
    """In one test, since the trial is one process that takes half a minute."""
    trial = run_trial(warm, words)
    verify_families_give_the_cpu_s_numbers(trial)
    # presets take steps
    assert len(trial["tokens"]) == count and min(trial["tokens"].values()) > 0
    # mixing with host tensors and reading without a copy are refused, so the rest means something
    assert trial["strict"] == [True, True, True]


def run_trial(python, words):
    done = subprocess.run(
        [python, str(Path(__file__).parent / "fake_device_trial.py"), *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.split("RESULT ")[-1])


def verify_families_give_the_cpu_s_numbers(trial):
    assert set(trial["cpu"]) == set(trial["fake_device"]) == set(names(Family))
    for name, cpu in trial["cpu"].items():
        on_device = trial["fake_device"][name]
        assert on_device["ids"] == cpu["ids"], name
        assert on_device["logp"] == pytest.approx(cpu["logp"], abs=1e-5), name
        assert on_device["gradient"] == pytest.approx(cpu["gradient"], rel=1e-4), name
