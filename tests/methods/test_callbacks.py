"""Callbacks: resets of the reference and of the optimizer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from make import run
from tiny import steps, text_run

from vlrl.methods.common.correctness import heldout_accuracy
from vlrl.methods.core.callback import OptimizerReset, ReferenceReset
from vlrl.plugins.registry import ConfigError


@pytest.fixture
def evaluated():
    """Calls a callback once per held-out accuracy (None: no task could be scored)."""
    values = []

    def scores():
        value = values.pop(0)
        return {} if value is None else {"a": value, "b": value}

    def call(callback, parts, *accuracies):
        values.extend(accuracies)
        parts.accuracy = scores
        metrics = [callback(parts, []) for _ in accuracies]
        assert not values
        return metrics

    return call


def parts_of(resets):
    return run(
        policy=SimpleNamespace(keep_reference=lambda renew: resets.append(renew)),
        optimizer=SimpleNamespace(state={"m": 1}), phase_step=0,
        aux_tensors={}, has_heldout=False,
    )  # fmt: skip


def test_reference_resets_on_a_plateau(evaluated):
    resets = []
    parts = parts_of(resets)
    callback = ReferenceReset(eval_every=1, patience=2)
    metrics = evaluated(
        callback, parts, 0.5, 0.6, 0.6, 0.5, 0.4, 0.4
    )  # two evaluations without a gain, then a new start
    assert (
        [m["reset"] for m in metrics] == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
        and resets == [True]
        and parts.optimizer.state == {}
    )
    again = ReferenceReset(eval_every=1, patience=2)
    again.load_state_dict(callback.state_dict())
    assert evaluated(again, parts, 0.3) == [{"reset": 1.0}]


def test_an_evaluation_without_scores_is_ignored(evaluated):
    callback = ReferenceReset(eval_every=1, patience=2)
    metrics = evaluated(callback, parts_of([]), 0.5, None, 0.5, None, 0.5)
    assert [m["reset"] for m in metrics] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert heldout_accuracy(SimpleNamespace(accuracy=dict)) is None
    assert heldout_accuracy(SimpleNamespace(accuracy=lambda: {"a": 0.5, "b": 1.0})) == 0.75


def test_reference_resets_on_schedule():
    resets = []
    parts = parts_of(resets)
    every = ReferenceReset(every=2, reset_optimizer=False)
    assert every(parts, [])["reset"] == 0.0
    parts.phase_step = 1
    assert every(parts, [])["reset"] == 1.0 and resets == [True] and parts.optimizer.state


def test_a_second_phase_begins_with_its_own_reference():
    """Without it the reference stays the model of the run's start."""
    kl = ["loss_terms.kl={name: kl}", "optimizer.lr=1e-2", "phases={a: {steps: 1}, b: {steps: 1}}"]
    for more in ([], ["phases.b.callbacks.reference={name: reference_reset, at_start: true}"]):
        made = text_run(["methods/grpo"], [*kl, *more])
        steps(made, 1)
        made.enter(1)
        same = all(
            torch.equal(a, b)
            for a, b in zip(
                made.policy.params.reference.parameters(), made.policy.model.parameters(), strict=True
            )
        )
        assert same == bool(more)


def test_with_an_adapter_no_reference_moves_and_that_is_said():
    """The reference is the model without the adapter."""
    parts = run(policy=SimpleNamespace(has_adapter=True, keep_reference=lambda renew: None))
    ReferenceReset(at_start=True).setup(parts)
    assert "moves no reference" in parts.warnings[0]


@pytest.mark.parametrize(
    ("callback", "aux_tensors", "reason"),
    [
        (ReferenceReset(every=1), {}, "add loss_terms: {kl: {name: kl}}"),
        (ReferenceReset(), {"ref_logp": 1}, "never resets"),
        (ReferenceReset(eval_every=1), {"ref_logp": 1}, "no held-out rows"),
    ],
)
def test_a_reset_that_cannot_work_is_refused(callback, aux_tensors, reason):
    parts = parts_of([])
    parts.aux_tensors = aux_tensors
    with pytest.raises(ConfigError, match=reason):
        callback.check(parts)


def test_optimizer_reset():
    parts = run(optimizer=SimpleNamespace(state={"m": 1}), phase_step=0)
    OptimizerReset(every=2)(parts, [])
    assert parts.optimizer.state
    parts.phase_step = 1
    OptimizerReset(every=2)(parts, [])
    assert not parts.optimizer.state
