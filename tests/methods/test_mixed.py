"""Dynamic sampling."""

import pytest
from make import group

from vlrl.methods.core.group_filter import DynamicSampling


@pytest.mark.parametrize(
    ("rewards", "keep", "reason"),
    [
        ((1, 0, 1), True, ""),
        ((1, 1), False, "all outcomes 1"),
        ((0, 0, 0), False, "all outcomes 0"),
        ((1,), False, "all outcomes 1"),
        ((), False, "empty group"),
    ],
)
def test_keeps_groups_that_disagree(rewards, keep, reason):
    assert DynamicSampling()(group(*rewards)) == (keep, reason)


def test_the_outcome_or_a_slot_decides_though_totals_differ():
    mixed = group(1.0, 1.1, raw={"accuracy": [1, 1], "format": [0, 1]})
    assert not DynamicSampling()(mixed).keep and DynamicSampling(metric="total")(mixed).keep
    assert not DynamicSampling(slot="accuracy")(mixed).keep and DynamicSampling(slot="format")(mixed).keep


def test_tolerance():
    assert not DynamicSampling(tolerance=0.2)(group(0.5, 0.6)).keep


def test_a_slot_that_was_not_scored_is_an_error():
    with pytest.raises(KeyError):
        DynamicSampling(slot="iou")(group(1, 0, raw={"accuracy": [1, 0]}))
