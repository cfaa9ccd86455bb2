"""Calibration figures against hand-worked values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from vlrl.eval.statistics import brier, expected_calibration_error, risk_coverage

CONFIDENCE = [0.95, 0.9, 0.8, 0.75, 0.6, 0.55, 0.3, 0.2, 0.99, 0.51]
CORRECT = [1, 1, 1, 0, 1, 0, 0, 0, 1, 0]


def test_known_values():
    assert expected_calibration_error(CONFIDENCE, CORRECT) == pytest.approx(0.187, abs=1e-12)
    assert brier(CONFIDENCE, CORRECT) == pytest.approx(0.14677, abs=1e-12)


def test_limits():
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == 0
    assert brier([1, 1], [0, 0]) == 1
    with pytest.raises(ValueError, match="confidences"):
        brier([1.2], [1])
    with pytest.raises(ValueError, match="at least one"):
        expected_calibration_error([], [])


def test_risk_coverage_by_hand():
    coverage, risk, area = risk_coverage([0.9, 0.8, 0.1], [1, 0, 1])
    assert coverage == pytest.approx([1 / 3, 2 / 3, 1])
    assert risk == pytest.approx([0, 0.5, 1 / 3])
    assert area == pytest.approx((0 + 0.5 + 1 / 3) / 3)


def test_ties_are_the_mean_over_their_orders():
    orders = [risk_coverage([0.9, 0.8, 0.7], order)[1] for order in itertools.permutations([1, 0, 0])]
    assert risk_coverage([0.5, 0.5, 0.5], [1, 0, 0])[1] == pytest.approx(np.mean(orders, axis=0).tolist())
