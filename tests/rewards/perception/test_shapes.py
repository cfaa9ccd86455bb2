"""Polygons, rotated boxes, masks, keypoints: by hand and against shapely and pycocotools."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest
from shapely import affinity, box
from vlrl_rewards import verify
from vlrl_rewards.boxes.geometry import overlap
from vlrl_rewards.masks.mask import MaskReward, code_pixels, encode, mask_iou, mask_of, read_mask
from vlrl_rewards.masks.polygons import (
    PolygonReward,
    RotatedBox,
    area_iou,
    corners_of,
    polygon,
    rotated_corners,
)
from vlrl_rewards.points.keypoints import COCO_NAMES, COCO_SIGMAS, Keypoints, oks

from vlrl.types import CoordinateSpace

SQUARE = [[0, 0], [10, 0], [10, 10], [0, 10]]
SIZE = {"size": (100, 100)}


def tag(text):
    return f"<answer>{text if isinstance(text, str) else json.dumps(text)}</answer>"


JUNK = [
    "",
    "<answer></answer>",
    "<answer>a square</answer>",
    "<answer>[1,2]</answer>",
    "<answer>[[[[</answer>",
    f"<think>{SQUARE}</think>",
    "<answer>None</answer>",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(SQUARE), 1),
        ("[0,0,10,0,10,10,0,10]", 1),
        ("[5, 5, 10, 10, 0]", 1),
        ("[5, 5, 10, 10, 90]", 1),
        ('{"polygon": [[0,0],[10,0],[10,10],[0,10]]}', 1),
        ("[[0,0],[10,0],[0,10]]", 0.5),
        ("[[5,0],[15,0],[15,10],[5,10]]", 1 / 3),
        ("[5, 5, 10, 10, 45]", 0.7071067811865476),
        ("[[0,0],[10,10],[10,0],[0,10]]", 0),  # crosses itself
        ("[[0,0],[5,5],[10,10]]", 0),
        (f"{SQUARE} {[[0, 0], [9, 0], [9, 9], [0, 9]]}", 0),
        ("[[-1e8,-1e8],[1e8,-1e8],[1e8,1e8],[-1e8,1e8]]", 100 / 4e16),
    ],
)
def test_polygon(text, expected):
    assert PolygonReward().verify(SQUARE, f"<answer>{text}</answer>").score == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize("reward", [PolygonReward(), RotatedBox(), RotatedBox(sharpness=2)])
@pytest.mark.parametrize("text", JUNK)
def test_shapes_refuse_junk(reward, text):
    assert reward.verify(SQUARE, text).score == 0


def test_rotated_box_direction_and_units():
    gold = [50, 50, 40, 20, 30]
    assert RotatedBox(sharpness=1).verify(
        gold, "<answer>[50, 50, 40, 20, 30]</answer>"
    ).score == pytest.approx(1)
    assert RotatedBox(sharpness=1).verify(
        gold, "<answer>[50, 50, 20, 40, 120]</answer>"
    ).score == pytest.approx(1)  # the same box, said otherwise
    assert RotatedBox(sharpness=1).verify(
        [0, 0, 10, 9.99, 0], "<answer>[0, 0, 10, 9.99, 45]</answer>"
    ).score == pytest.approx(0, abs=1e-9)
    squeezed = {"spaces": (CoordinateSpace((200, 100), (100, 100), "seen"),)}
    assert (
        PolygonReward()
        .verify([[0, 0], [20, 0], [20, 10], [0, 10]], f"<answer>{SQUARE}</answer>", **squeezed)
        .score
        == 1
    )
    for broken in ("x", [[0, 0], [1, 1]], [[0, 0], [10, 10], [10, 0], [0, 10]], 5, [SQUARE, SQUARE]):
        with pytest.raises(ValueError, match="gold polygon"):
            PolygonReward().verify(broken, "")


def test_agrees_with_shapely():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        (cx, cy, dx, dy), (w, h, w2, h2), (turn, turn2) = (
            rng.uniform(-20, 20, 4),
            rng.uniform(1, 30, 4),
            rng.uniform(-180, 180, 2),
        )
        ours = [polygon(rotated_corners(cx, cy, w, h, turn)), polygon(rotated_corners(dx, dy, w2, h2, turn2))]
        theirs = [
            affinity.rotate(box(x - a / 2, y - b / 2, x + a / 2, y + b / 2), t)
            for x, y, a, b, t in ((cx, cy, w, h, turn), (dx, dy, w2, h2, turn2))
        ]
        assert area_iou(*ours) == pytest.approx(
            theirs[0].intersection(theirs[1]).area / theirs[0].union(theirs[1]).area, abs=1e-9
        )
        assert area_iou(*ours) == pytest.approx(area_iou(*ours[::-1]), abs=1e-12)
        straight = [
            polygon(rotated_corners(x, y, a, b, 0)) for x, y, a, b in ((cx, cy, w, h), (dx, dy, w2, h2))
        ]
        assert area_iou(*straight) == pytest.approx(overlap(straight[0].bounds, straight[1].bounds), abs=1e-9)


# --- masks --------------------------------------------------------------------------------------------------


def test_masks_agree_with_numpy():
    rng = np.random.default_rng(1)
    for _ in range(1000):
        a, b = rng.random((2, 7, 5)) < rng.uniform(0.1, 0.9)
        union = (a | b).sum()
        assert mask_iou(encode(a), encode(b)) == pytest.approx((a & b).sum() / union if union else 0)
        assert code_pixels(encode(a)["counts"].decode()) == 35


def test_mask_reward():
    array = np.zeros((10, 8), bool)
    array[2:6, 1:5] = True
    rle = encode(array)
    code = {"counts": rle["counts"].decode(), "size": [10, 8]}
    half = array.copy()
    half[4:] = False
    for gold in (array, code, rle):
        assert MaskReward().verify(gold, f"<answer>{code}</answer>".replace("\\\\", "\\")).score == 1
        assert MaskReward().verify(gold, "<answer>[[1,2],[5,2],[5,6],[1,6]]</answer>").score == 1
        assert MaskReward().verify(gold, "<answer>[[1,2],[5,2],[5,4],[1,4]]</answer>").score == pytest.approx(
            0.5
        )
    runs = mask_of([12, 4, 6, 4, 6, 4, 6, 4, 34], 10, 8)
    assert (
        MaskReward().verify(array, '<answer>{"counts": [12,4,6,4,6,4,6,4,34], "size": [10,8]}</answer>').score
        == mask_iou(runs, rle)
        == 1
    )
    for bad in (
        *JUNK,
        '{"counts": [1,2], "size": [10,8]}',
        '{"counts": "zzzz", "size": [10, 8]}',
        '{"counts": "0", "size": [900000000,9]}',
        "[1,2,5,6]",
    ):
        assert MaskReward().verify(array, bad).score == 0
    for broken in (np.zeros((3, 3)), {"counts": "~", "size": [3, 3]}, [[0, 0], [1, 1]], "x"):
        with pytest.raises(ValueError, match="gold mask"):
            MaskReward().verify(broken, "")


def test_broken_codes_never_reach_the_decoder():
    rng = np.random.default_rng(2)
    for _ in range(500):
        text = "".join(chr(c) for c in rng.integers(48, 112, rng.integers(1, 30)))
        mask = read_mask({"counts": text, "size": [6, 6]}, 6, 6)
        assert mask is None or code_pixels(text) == 36
    with pytest.raises(ValueError, match="mask"):
        mask_of([5, 5], 3, 3)


# --- keypoints ----------------------------------------------------------------------------------------------


def coco_oks(predicted, gold, area):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        base = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 50, 50], "area": area, "iscrowd": 0}
        truth.dataset = {
            "images": [{"id": 1}],
            "categories": [{"id": 1}],
            "annotations": [{**base, "keypoints": gold, "num_keypoints": 17}],
        }
        truth.createIndex()
        run = COCOeval(
            truth,
            truth.loadRes([{"image_id": 1, "category_id": 1, "keypoints": predicted, "score": 1}]),
            "keypoints",
        )
        run._prepare()
        return float(run.computeOks(1, 1)[0, 0])


def test_oks_agrees_with_pycocotools():
    rng = np.random.default_rng(3)
    for _ in range(1000):
        gold = np.c_[rng.uniform(0, 50, (17, 2)), rng.integers(0, 3, 17)]
        gold[0, 2] = 2
        predicted = gold[:, :2] + rng.normal(0, rng.uniform(0.1, 10), (17, 2))
        flat = np.c_[predicted, np.ones(17)].ravel().tolist()
        ours = oks([tuple(p) for p in predicted], [tuple(g) for g in gold], 2500.0, COCO_SIGMAS)
        assert ours == pytest.approx(coco_oks(flat, gold.ravel().tolist(), 2500.0), abs=1e-9)


def test_keypoint_reward():
    gold = {"keypoints": {"nose": [10, 10], "left eye": [20, 10]}, "area": 400}
    reward = Keypoints()
    assert reward.verify(gold, '<answer>{"nose": [10, 10], "left_eye": [20, 10]}</answer>').score == 1
    assert reward.verify(gold, '<answer>{"nose": [10, 10]}</answer>').score == 0.5
    away = np.exp(-(3**2) / (2 * 400 * (2 * 0.026) ** 2))
    assert reward.verify(
        gold, '<answer>{"nose": [13, 10], "left eye": [20, 10]}</answer>'
    ).score == pytest.approx((away + 1) / 2)
    listed = [[10, 10], [20, 10]] + [None] * 15
    assert reward.verify(gold, f"<answer>{listed}</answer>").score == 1
    everywhere = [[10, 10], [20, 10]] + [[1, 1]] * 15
    assert Keypoints(false_points=True).verify(gold, f"<answer>{everywhere}</answer>").score == pytest.approx(
        2 / 17
    )
    for bad in (
        *JUNK,
        '{"nose": 10}',
        '{"nose": [10,10], "Nose": [0,0], "left eye": [20,10]}',
        "[[10,10],[20,10]]",
        '{"tail": [10,10]}',
    ):
        assert reward.verify(gold, bad).score == 0
    for broken in (
        {},
        {"keypoints": [], "area": 1},
        {"keypoints": {"nose": [1, 1]}},
        {"keypoints": [0] * 51, "area": 9},
        None,
    ):
        with pytest.raises(ValueError, match="keypoint"):
            reward.verify(broken, "")
    with pytest.raises(ValueError, match="sigmas"):
        Keypoints(sigmas=(0.1,))
    assert len(COCO_NAMES) == len(COCO_SIGMAS) == 17


@pytest.mark.parametrize(
    "size",
    [
        "null",
        "5",
        '"10"',
        "[10]",
        "[10, null]",
        '["10", "10"]',
        "[10, 10.5]",
        "[true, 10]",
        "{}",
        "[[10], 10]",
        "[10, 10, 10]",
    ],
)
def test_a_mask_of_a_broken_size_is_none(size):
    for body in (
        f'{{"size": {size}}}',
        f'{{"counts": [0, 100], "size": {size}}}',
        f'{{"counts": "0T3", "size": {size}}}',
    ):
        assert verify(SQUARE, tag(body), "mask", meta=SIZE).score == 0
    with pytest.raises(ValueError, match="gold mask"):
        verify({"counts": [0, 100], "size": json.loads(size)}, "", "mask")


def test_run_lengths_are_whole_numbers():
    gold = {"counts": [10, 20, 70], "size": [10, 10]}
    assert verify(gold, tag({"counts": [10, 20, 70], "size": [10, 10]}), "mask").score == 1
    assert verify(gold, tag({"counts": [10.0, 20.0, 70.0], "size": [10.0, 10]}), "mask").score == 1
    for counts in (
        [10.9, 20.9, 70.9],
        [10.5, 20, 70],
        [10, 20, 70.2],
        [True, 20, 70],
        [],
        "10 20 70",
        None,
        [[10, 20, 70]],
    ):
        assert verify(gold, tag({"counts": counts, "size": [10, 10]}), "mask").score == 0, counts


def test_the_limits_are_said():
    ring = [[i % 10, i] for i in range(501)]
    assert corners_of(ring[:500]) and corners_of(ring) is None
    for kind in ("mask", "polygon"):
        verdict = verify(SQUARE, tag(f"{SQUARE}{' ' * 20_000}{SQUARE}"), kind, meta=SIZE)
        assert verdict.score == 0 and "20,000" in verdict.reason
