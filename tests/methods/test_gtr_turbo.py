"""GTR-Turbo: the merged teacher by hand."""

from types import SimpleNamespace

import pytest
import torch

from vlrl.methods.papers.gtr_turbo import GtrTurbo


def merged(callback, weights):
    """The reference after each of the given weights, from 0."""
    model, reference = torch.nn.Linear(1, 1, bias=False), {"weight": torch.zeros(1, 1)}
    policy = SimpleNamespace(model=model, reference_state=lambda: {"weights": reference})
    found = []
    for step, weight in enumerate(weights):
        model.weight.data.fill_(weight)
        log = callback(SimpleNamespace(policy=policy, phase_step=step), [])
        found.append(float(reference["weight"]))
    return found, log


def test_the_mean_weighs_all_checkpoints_alike():
    found, log = merged(GtrTurbo(), [3.0, 6.0, -1.0])
    assert found == pytest.approx([1.5, 3.0, 2.0]) and log == {"distance": pytest.approx(3.0), "checkpoints": 4.0}


def test_an_average_that_forgets_and_steps_without_a_merge():
    assert merged(GtrTurbo(merge="ema", decay=0.5), [4.0, 4.0])[0] == pytest.approx([2.0, 3.0])
    found, log = merged(GtrTurbo(every=2), [3.0, 6.0, 9.0, 9.0])
    assert found == pytest.approx([0.0, 3.0, 3.0, 5.0]) and log["checkpoints"] == 3.0
    with pytest.raises(ValueError, match="every=0"):
        GtrTurbo(every=0)
