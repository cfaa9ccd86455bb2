"""Every family and many presets run on a simulated device whose tensors do not mix with CPU tensors, as a GPU
requires."""

import json
import subprocess
from pathlib import Path

import pytest

from vlrl.plugins.registry import names
from vlrl.policy import Family

STRICT = "mixing with host tensors and reading without a copy are refused, so the rest means something"


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(5))
def test_families_on_a_strict_device(warm, part):
    """Several in one test, since a trial is a process of its own."""
    families = names(Family)[part::5]
    trial = run_trial(warm, ("--families", *families))
    assert trial["strict"] == [True, True, True], STRICT
    assert set(trial["cpu"]) == set(trial["fake_device"]) == set(families) and len(families) >= 4
    verify_families_give_the_cpu_s_numbers(trial)


@pytest.mark.parametrize(
    ("words", "count"), [((), 11), pytest.param(("--all",), 22, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_presets_take_steps_on_a_strict_device(warm, words, count):
    trial = run_trial(warm, words)
    assert trial["strict"] == [True, True, True], STRICT
    assert len(trial["tokens"]) == count and min(trial["tokens"].values()) > 0


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
    for name, cpu in trial["cpu"].items():
        on_device = trial["fake_device"][name]
        assert on_device["ids"] == cpu["ids"], name
        assert on_device["logp"] == pytest.approx(cpu["logp"], abs=1e-5), name
        assert on_device["gradient"] == pytest.approx(cpu["gradient"], rel=1e-4), name
