"""Presets of the text-reward family: they build on the lab's arithmetic and take steps, and those that change a reward change it there."""

from __future__ import annotations

import pytest
from tiny import steps, text_run

SHAPED = ["laser_2", "grpo_lambda", "efficiencysteering_ser_rl", "campo", "par", "noisy_verifier_corrections", "cde", "diver"]
REWARDED = ["format_length_surrogate", "rpr", "simplerl_zoo"]


@pytest.mark.parametrize("method", SHAPED + REWARDED)
def test_two_steps(method):
    made = text_run([f"methods/{method}"])
    first, second = steps(made, 2)
    assert first["groups"] > 0 and second["rollouts"] > 0 and first["reward/errors"] == 0
