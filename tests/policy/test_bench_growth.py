"""Fitted exponents of cost, and the optimizer that a CPU runs."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from benchmarks.growth import Curve, exponent, measure, recording
from benchmarks.growth_plot import WIDTH, log_ticks, plot
from vlrl.trainer.step.optim import _optimizer_class


def test_exponents_by_hand() -> None:
    assert exponent([(1, 3.0), (10, 30.0), (100, 300.0)]) == pytest.approx(1)
    assert exponent([(2, 5.0), (4, 20.0)]) == pytest.approx(2)
    assert exponent([(2, 5.0), (8, 5.0)]) == pytest.approx(0)
    with pytest.raises(ValueError, match="at least two sizes"):
        exponent([(2, 5.0)])


def test_a_curve_is_measured_at_each_size() -> None:
    found = measure(Curve((20, 200), recording, repeats=1))
    assert list(found["seconds"]) == [20, 200] and found["exponent"] == pytest.approx(
        found["exponent_at_end"]
    )


def test_a_curve_with_a_clock_of_its_own() -> None:
    found = measure(Curve((1, 2, 4), lambda size: lambda: float(size**2), repeats=2, own_clock=True))
    assert found["seconds"] == {1: 1.0, 2: 4.0, 4: 16.0} and found["exponent"] == pytest.approx(2)


def test_the_picture_shows_measured_points_and_the_fitted_line() -> None:
    curve = Curve(
        (1, 10, 100, 1000),
        lambda size: lambda: 0.3 * min(size, 100) ** 2.0,
        repeats=1,
        own_clock=True,
        fitted=(1, 10, 100),
    )
    found = measure(curve)
    assert found["exponent"] == pytest.approx(2) and found["fitted"] == [1, 10, 100]
    root = ElementTree.fromstring(plot({"a < b": found, "again": found}))
    panels = [panel for panel in root if panel.tag.endswith("}g")][:2]
    shown = {
        kind: [part.attrib for part in panels[0] if part.get("class") == kind]
        for kind in ("title", "point", "left-out", "fit", "linear")
    }
    assert panels[0][0].text == "a < b" and len(shown["point"]) == 3 and len(shown["left-out"]) == 1
    (fit,), (linear,) = shown["fit"], shown["linear"]
    first, last = shown["point"][0], shown["point"][-1]
    ends = [float(fit[name]) / WIDTH for name in ("x1", "y1", "x2", "y2")]
    points = [float(one[name]) / WIDTH for one in (first, last) for name in ("cx", "cy")]
    assert ends == pytest.approx(points, abs=1e-3), "the exact power meets its points"
    steep = [
        (float(line["y1"]) - float(line["y2"])) / (float(line["x2"]) - float(line["x1"]))
        for line in (fit, linear)
    ]
    assert steep[0] == pytest.approx(2 * steep[1], rel=1e-2)


def test_ticks_of_a_logarithmic_axis() -> None:
    assert log_ticks(0.02, 3) == [0.1, 1] and log_ticks(0.011, 0.09) == pytest.approx([0.02, 0.05])
    assert log_ticks(1e-6, 10) == pytest.approx([1e-6, 1e-4, 1e-2, 1])


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
