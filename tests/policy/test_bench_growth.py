"""Fitted exponents of cost, and the optimizer that a CPU runs."""

from __future__ import annotations

import pytest
import torch

from vlrl.bench.growth import Curve, exponent, measure, recording
from vlrl.trainer.optim import _optimizer_class


def test_exponents_by_hand() -> None:
    assert exponent([(1, 3.0), (10, 30.0), (100, 300.0)]) == pytest.approx(1)
    assert exponent([(2, 5.0), (4, 20.0)]) == pytest.approx(2)
    assert exponent([(2, 5.0), (8, 5.0)]) == pytest.approx(0)
    with pytest.raises(ValueError, match="at least two sizes"):
        exponent([(2, 5.0)])


def test_a_curve_is_measured_at_each_size() -> None:
    found = measure(Curve((20, 200), recording, repeats=1))
    assert list(found["seconds"]) == [20, 200] and found["exponent"] == pytest.approx(found["exponent_at_end"])


def test_a_curve_with_a_clock_of_its_own() -> None:
    found = measure(Curve((1, 2, 4), lambda size: lambda: float(size**2), repeats=2, own_clock=True))
    assert found["seconds"] == {1: 1.0, 2: 4.0, 4: 16.0} and found["exponent"] == pytest.approx(2)


def test_adamw_of_a_cpu_is_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    cls, extra = _optimizer_class("adamw")
    assert extra == {"fused": True} and _optimizer_class("adamw", "cuda")[1] == {}
    torch.manual_seed(0)
    start, grads = torch.randn(50), torch.randn(3, 50)
    ends = []
    for options in (extra, {}):
        weight = torch.nn.Parameter(start.clone())
        optimizer = cls([weight], lr=0.01, weight_decay=0.1, **options)
        for grad in grads:
            weight.grad = grad.clone()
            optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends, atol=1e-7, rtol=1e-6)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert _optimizer_class("adamw")[1] == {}
