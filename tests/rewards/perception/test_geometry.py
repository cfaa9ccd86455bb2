"""Overlaps by hand, and against torchvision and shapely on random boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.boxes.geometry import OVERLAPS, WORST, as_boxes, matrix, overlap

corner, side = st.floats(-50, 50), st.floats(0.5, 60)
box = st.tuples(corner, corner, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
kinds = st.sampled_from(sorted(OVERLAPS))


@pytest.mark.parametrize(
    ("a", "b", "kind", "expected"),
    [
        ((0, 0, 2, 2), (1, 1, 3, 3), "iou", 1 / 7),
        ((0, 0, 2, 2), (1, 1, 3, 3), "giou", 1 / 7 - 2 / 9),
        ((0, 0, 2, 2), (1, 1, 3, 3), "diou", 1 / 7 - 2 / 18),
        ((0, 0, 2, 2), (1, 1, 3, 3), "ciou", 1 / 7 - 2 / 18),  # equal aspect
        ((0, 0, 1, 1), (2, 0, 3, 1), "giou", -1 / 3),
        (
            (0.1, 0.1, 0.9, 0.9),
            (0.1, 0.1, 0.9, 0.9),
            "iou",
            1.0,
        ),  # unit coordinates: the "+1 pixel" overlap of VLM-R1 gives 0 here
        ((5, 5, 6, 6), (5, 5, 6, 6), "iou", 1.0),  # one pixel
        ((0, 0, 2, 2), (2, 0, 4, 2), "iou", 0.0),  # touching
        ((2, 2, 0, 0), (0, 0, 2, 2), "iou", 0.0),  # corners swapped
        ((0, 0, 0, 0), (0, 0, 0, 0), "iou", 0.0),
    ],
)
def test_by_hand(a, b, kind, expected):
    assert overlap(a, b, kind) == pytest.approx(expected, abs=1e-12)


def test_agrees_with_torchvision():
    torch, ops = pytest.importorskip("torch"), pytest.importorskip("torchvision.ops")
    rng = np.random.default_rng(0)
    low = rng.uniform(-20, 80, (2, 1000, 2))
    a, b = np.concatenate([low, low + rng.uniform(0.5, 60, (2, 1000, 2))], -1)
    table = {
        "iou": ops.box_iou,
        "giou": ops.generalized_box_iou,
        "diou": ops.distance_box_iou,
        "ciou": ops.complete_box_iou,
    }
    for kind, reference in table.items():
        np.testing.assert_allclose(
            matrix(a, b, kind), reference(torch.tensor(a), torch.tensor(b)).numpy(), atol=1e-6
        )


def test_agrees_with_shapely():
    shapely = pytest.importorskip("shapely")
    rng = np.random.default_rng(1)
    low = rng.uniform(0, 40, (2, 1000, 2))
    a, b = np.concatenate([low, low + rng.uniform(0.5, 60, (2, 1000, 2))], -1)
    first, second = shapely.box(*a.T), shapely.box(*b.T)
    inter = shapely.area(shapely.intersection(first, second))
    expected = inter / shapely.area(shapely.union(first, second))
    np.testing.assert_allclose([overlap(x, y) for x, y in zip(a, b, strict=True)], expected, atol=1e-9)


@settings(max_examples=150, deadline=None)
@given(box, box, kinds)
def test_bounded_and_symmetric(a, b, kind):
    value = overlap(a, b, kind)
    assert WORST[kind] <= value <= 1
    assert value == pytest.approx(overlap(b, a, kind), abs=1e-9)
    assert overlap(a, a, kind) == pytest.approx(1, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(box, kinds, st.floats(0, 1), st.floats(0, 1))
def test_falls_as_a_box_slides_away(a, kind, near, far):
    near, far = sorted((near, far))
    width = a[2] - a[0]
    slid = [(a[0] + share * 2 * width, a[1], a[2] + share * 2 * width, a[3]) for share in (near, far)]
    assert overlap(a, slid[1], kind) <= overlap(a, slid[0], kind) + 1e-9


@settings(max_examples=100, deadline=None)
@given(box, box, kinds, st.floats(0.1, 10), corner)
def test_scale_and_shift_change_nothing(a, b, kind, scale, shift):
    moved = [[scale * v + shift for v in c] for c in (a, b)]
    assert overlap(*moved, kind) == pytest.approx(overlap(a, b, kind), abs=1e-6)


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="use one of iou"):
        overlap((0, 0, 1, 1), (0, 0, 1, 1), "iuo")
    with pytest.raises(ValueError, match="N x 4 finite"):
        as_boxes([(0, 0, 1, float("nan"))])
    assert matrix([], [(0, 0, 1, 1)]).shape == (0, 1)
