"""Boxes: COCO's mAP against pycocotools run on the same boxes, referring expressions and clicks in every
reading of coordinates."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest

from vlrl.eval import load_suite, score_item
from vlrl.eval.aggregates.coco import COCO_STATS, coco_stats
from vlrl.eval.scorers.boxes import first_point, iou
from vlrl.eval.scorers.detection import detections
from vlrl.plugins.scoring import Response, Verdict
from vlrl.types import CoordinateSpace

pycocotools = pytest.importorskip("pycocotools")


def reference(gold, found):
    """pycocotools on COCO's own form: {image: [(category, xywh, crowd)]}, {image: [(category, xywh,
    score)]}."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    categories = sorted({c for boxes in gold.values() for c, _, _ in boxes})
    flat = [(image, c, box, crowd) for image, boxes in gold.items() for c, box, crowd in boxes]
    api = COCO()
    api.dataset = {
        "info": {}, "images": [{"id": image, "width": 500, "height": 500} for image in gold],
        "categories": [{"id": c, "name": str(c)} for c in categories],
        "annotations": [
            {"id": i + 1, "image_id": image, "category_id": c, "bbox": list(box), "area": box[2] * box[3],
                "iscrowd": crowd}
            for i, (image, c, box, crowd) in enumerate(flat)
        ],
    }  # fmt: skip
    results = [
        {"image_id": image, "category_id": c, "bbox": list(box), "score": score}
        for image, boxes in found.items() for c, box, score in boxes if c in categories
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        api.createIndex()
        run = COCOeval(api, api.loadRes(results), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return dict(zip(COCO_STATS, map(float, run.stats)))


def as_scored(gold, found):
    scored = []
    for image in gold:
        boxes = [
            {"box": [x, y, x + w, y + h], "label": f"{c:03d}", "score": score}
            for c, (x, y, w, h), score in found.get(image, [])
        ]
        golds = [
            {"box": [x, y, x + w, y + h], "label": f"{c:03d}", "area": w * h, "crowd": crowd}
            for c, (x, y, w, h), crowd in gold[image]
        ]
        scored.append(Verdict(0.0, False, details={"boxes": boxes, "gold_boxes": golds, "size": (500, 500)}))
    return scored


@pytest.mark.parametrize("seed", range(6))
def test_map_equals_pycocotools_digit_for_digit(seed):
    rng = np.random.default_rng(seed)
    gold, found = {}, {}
    for image in range(1, 9):
        boxes = []
        for _ in range(rng.integers(1, 7)):
            boxes.append(
                (
                    int(rng.integers(1, 4)),
                    tuple(float(v) for v in rng.integers([0, 0, 8, 8], [300, 300, 200, 200])),
                    int(rng.random() < 0.1),
                )
            )
        gold[image] = boxes
        moved = [
            (c, tuple(float(v + d) for v, d in zip(box, rng.integers(-6, 7, size=4))), float(rng.random()))
            for c, box, _ in boxes
            if rng.random() < 0.8
        ]
        wrong = [
            (int(rng.integers(1, 5)), (float(rng.integers(0, 300)), 5.0, 40.0, 40.0), float(rng.random()))
            for _ in range(rng.integers(0, 4))
        ]
        found[image] = moved + wrong
    assert coco_stats(as_scored(gold, found)) == reference(gold, found)


ONE = (10.0, 10.0, 100.0, 100.0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(1, ONE, 0.9)], (1, 1, 1, 1)),
        ([(1, (10.0, 10.0, 100.0, 75.0), 0.9)], (0.6, 1, 1, 0.6)),  # IoU exactly .75
        ([(1, (10.0, 10.0, 100.0, 50.0), 0.9)], (0.1, 1, 0, 0.1)),  # IoU exactly .5
        ([(1, ONE, 0.9), (1, (300.0, 300.0, 50.0, 50.0), 0.8)], (1, 1, 1, 1)),
        ([(1, (300.0, 300.0, 50.0, 50.0), 0.9), (1, ONE, 0.8)], (0.5, 0.5, 0.5, 1)),
        ([], (0, 0, 0, 0)),
    ],
)
def test_known_cases(found, expected):
    stats = coco_stats(as_scored({1: [(1, ONE, 0)]}, {1: found}))
    assert (stats["AP"], stats["AP50"], stats["AP75"], stats["AR100"]) == pytest.approx(expected, abs=1e-9)


def test_one_of_two_found_and_only_crowd():
    two = {1: [(1, ONE, 0), (1, (300.0, 300.0, 80.0, 80.0), 0)]}
    stats = coco_stats(as_scored(two, {1: [(1, ONE, 0.9)]}))
    assert (stats["AP"], stats["AR100"]) == pytest.approx((0.504950495, 0.5))
    assert coco_stats(as_scored({1: [(1, ONE, 1)]}, {1: [(1, ONE, 0.9)]}))["AP"] == -1


def test_the_suite_scores_what_a_response_lists(fixture_data):
    data = fixture_data("coco")
    suite = load_suite("coco")
    scorer = suite.profile("official").scorer
    boxes = [{"bbox_2d": [10, 10, 40, 50], "label": "Box"}, {"bbox_2d": [60, 20, 80, 40], "label": "ball"}]
    texts = [f"```json\n{json.dumps(boxes)}\n```", json.dumps([boxes[1]])]
    figures = suite.profile("official").aggregate(
        data.records, [scorer(record, text) for record, text in zip(data.records, texts)]
    )
    assert 0 < figures["overall"] < 1 and figures["overall"] == figures["AP"]
    scored = [scorer(record, scorer.demonstrations(record)[0]) for record in data.records]
    assert suite.profile("official").aggregate(data.records, scored)["AP"] == pytest.approx(1)
    assert [mark.score for mark in scored] == [1, 1]


def test_the_declared_score_rule_ranks_by_place():
    record = {
        "width": 500,
        "height": 500,
        "objects": {"bbox": [[10, 10, 110, 110]], "category": ["cat"], "area": [10000]},
    }
    scorer = load_suite("coco").profile("official").scorer
    items = [
        {"bbox_2d": [300, 300, 350, 350], "label": "cat"},
        {"bbox_2d": [10, 10, 110, 110], "label": "cat"},
    ]
    ranks = [box["score"] for box in scorer(record, json.dumps(items)).details["boxes"]]
    assert ranks == [1.0, 0.5]
    stated = [{**items[0], "score": 0.2}, {**items[1], "score": 0.9}]
    aggregate = load_suite("coco").profile("official").aggregate
    assert aggregate([record], [scorer(record, json.dumps(items))])["AP"] == pytest.approx(0.5)
    assert aggregate([record], [scorer(record, json.dumps(stated))])["AP"] == pytest.approx(1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no boxes",
        "[",
        "[1, 2",
        "{}",
        '[{"bbox": [1, 2, 3]}]',
        '[{"bbox": ["a", 1, 2, 3]}]',
        "[" * 5000,
        '[{"bbox": [true, 1, 2, 3]}]',
    ],
)
def test_garbage_holds_no_detections(text):
    assert not detections(text)


def test_lvis_leaves_out_labels_that_a_picture_was_not_annotated_for(fixture_data):
    data = fixture_data("lvis")
    scorer = load_suite("lvis").profile("official").scorer
    record = data.records[1]  # annotated for balls only
    said = json.dumps(
        [{"bbox_2d": [20, 20, 40, 40], "label": "ball"}, {"bbox_2d": [0, 0, 9, 9], "label": "crate"}]
    )
    assert [box["label"] for box in scorer(record, said).details["boxes"]] == ["ball"]
    scored = [scorer(entry, scorer.demonstrations(entry)[0]) for entry in data.records]
    figures = load_suite("lvis").profile("official").aggregate(data.records, scored)
    assert (figures["AP_r"], figures["AP_f"], figures["AP_c"]) == pytest.approx((1, 1, -1))


def test_iou_edges():
    assert iou((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou((0, 0, 0, 0), (0, 0, 0, 0)) == 0  # the harnesses divide by zero here


@pytest.mark.parametrize(
    # official, lmms_eval (0-1), vlmevalkit (guessed), declared (pixels): box [10, 10, 40, 50], picture 96 x
    # 64
    ("response", "scores"),
    [
        ("[0.104, 0.156, 0.417, 0.781]", (1, 1, 1, 0)), ("[10, 10, 40, 50]", (0, 0, 0, 1)),
        ("(104, 156, 417, 781)", (0, 0, 1, 0)),
        ("104 156 417 781", (0, 0, 1, 0)), ("no box", (0, 0, 0, 0)), ("", (0, 0, 0, 0)), ("[0, 0, 0, 0]",
            (0, 0, 0, 0)),
        ("[0.9, 0.9, 1, 1] or [0.104, 0.156, 0.417, 0.781]", (0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_referring_in_every_reading(response, scores, fixture_data):
    record = fixture_data("refcoco").records[0]
    assert (
        tuple(
            score_item("refcoco", record, response, p)
            for p in ("official", "lmms_eval", "vlmevalkit", "declared")
        )
        == scores
    )


def test_declared_units_follow_the_recorded_space(fixture_data):
    record, spaces = fixture_data("refcoco").records[0], (CoordinateSpace((96, 64), (192, 128), "seen"),)
    for profile in ("declared", "vlrl"):
        scored = [
            score_item("refcoco", record, Response(text, spaces), profile)
            for text in ("[20, 20, 80, 100]", "[10, 10, 40, 50]")
        ]
        assert scored == [1, 0]


def test_a_screen_full_of_boxes_earns_nothing(fixture_data):
    data = fixture_data("refcoco")
    grid = " ".join(
        f"[{x / 4:.2f}, {y / 4:.2f}, {(x + 1) / 4:.2f}, {(y + 1) / 4:.2f}]"
        for x in range(4)
        for y in range(4)
    )
    for profile in load_suite("refcoco").built:
        assert sum(score_item("refcoco", record, grid, profile) for record in data.records) == 0


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("(0.25, 0.5)", (0.25, 0.5)),
        ("[25%, 50%]", (0.25, 0.5)),
        ("[0.1, 0.2, 0.3, 0.4]", (0.2, 0.3)),
        ("x=3, y=4", (3, 4)),
        ("12 and 13", (12, 13)),
        ("no", None),
    ],
)
def test_first_point(text, point):
    assert first_point(text) == (pytest.approx(point) if point else None)


@pytest.mark.parametrize(
    ("response", "score"),
    [("(0.2, 0.3)", 1), ("(0.1, 0.1)", 1), ("(0.05, 0.3)", 0), ("(0, 0)", 0), ("", 0), ("menu", 0)],
)
def test_clicks_include_the_border(response, score, fixture_data):
    assert score_item("screenspot", fixture_data("screenspot").records[0], response) == score


def test_screenspot_pro_divides_pixels_by_the_picture(fixture_data):
    record = fixture_data("screenspot_pro").records[0]
    assert [
        score_item("screenspot_pro", record, text) for text in ("[20, 20]", "[0.2, 0.3]", "[200, 300]")
    ] == [1, 1, 0]
