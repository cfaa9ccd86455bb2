"""Weights of UniVG-R1, by hand."""

from __future__ import annotations

import math

import pytest
from make import group, inputs

from vlrl.methods.papers.univg_r1 import UnivgR1


@pytest.mark.parametrize(
    ("form", "k", "easy", "hard"),
    [("exp", 1.0, 1.0, math.exp(0.75)), ("power", 2.0, 0.05**2, 0.8**2), ("log", 1.0, 0.0, -math.log(0.27))],
)
def test_hard_prompts_weigh_more(form, k, easy, hard):
    groups = [
        group(1.1, 1.1, raw={"iou": [1.0, 1.0]}, name="a"),
        group(0.6, 0.1, raw={"iou": [0.5, 0.0]}, name="b"),
    ]
    x = inputs([[0.0], [0.0], [0.0], [0.0]], group_of=[0, 0, 1, 1], groups=groups)
    weights = UnivgR1(slot="iou", form=form, k=k)(x)
    assert weights.shape == (4, 1)
    assert weights[:, 0].tolist() == pytest.approx([easy, easy, hard, hard])


def test_without_a_slot_the_total_counts_and_a_missing_slot_raises():
    x = inputs([[0.0], [0.0]], reward=[1.0, 0.0])
    assert UnivgR1()(x)[:, 0].tolist() == pytest.approx([math.exp(0.5)] * 2)
    with pytest.raises(KeyError):
        UnivgR1(slot="iou")(x)
