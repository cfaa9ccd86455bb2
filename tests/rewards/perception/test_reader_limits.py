"""Limits of the readers, each with its true reason; and second answers under other keys of one object."""

import json

import pytest
from vlrl_rewards import verify
from vlrl_rewards.literals import MAX_CHARS

BOX, POINT = [10, 10, 50, 50], [10, 10, 30, 20]
MASK = {"size": [4, 4], "counts": [5, 2, 2, 2, 5]}
POLYGON = [[0, 0], [10, 0], [10, 10], [0, 10]]
GRAPH = {"objects": [{"id": "dog.1", "bbox": [0, 0, 9, 9]}], "relationships": []}


def tag(value):
    return f"<answer>{value if isinstance(value, str) else json.dumps(value)}</answer>"


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "reason"),
    [
        ("box", BOX, [[i, 0, i + 1, 1] for i in range(1001)], "more than 1,000 boxes"),
        ("boxes", [BOX], [[i, 0, i + 1, 1] for i in range(1001)], "more than 1,000 boxes"),
        ("points", [POINT], [[i, 0] for i in range(1001)], "more than 1,000 boxes or points"),
        ("box", BOX, "x" * (MAX_CHARS + 1), "more than 20,000 characters"),
        ("mask", MASK, "x" * (MAX_CHARS + 1), "more than 20,000 characters"),
        ("mask", MASK, {"size": [4, 4], "counts": "0" * 20_001}, "more than 20,000 characters"),
        ("mask", MASK, [[i, i * i % 97] for i in range(501)], "more than 500 corners"),
        ("mask", MASK, [[0, 0, 1, 0, 1, 1]] * 101, "more than 100 polygons"),
        ("polygon", POLYGON, [[i, i * i % 97] for i in range(501)], "more than 500 corners"),
        ("polygon", POLYGON, {"polygon": list(range(1002))}, "more than 500 corners"),
        (
            "scene_graph",
            GRAPH,
            {"objects": [{"id": f"a.{i}", "bbox": [0, 0, 9, 9]} for i in range(201)]},
            "more than 200 objects",
        ),
        ("count", 7, "x" * (MAX_CHARS + 1), "more than 20,000 characters"),
        ("ocr", "SALE", "x" * (MAX_CHARS + 1), "more than 20,000 characters"),
    ],
)
def test_the_reason_names_the_limit(kind, gold, answer, reason):
    verdict = verify(
        gold, tag(answer), kind, **({"meta": {"size": [100, 100]}} if kind == "scene_graph" else {})
    )
    assert not verdict.correct and verdict.score == 0 and reason in verdict.reason, verdict


@pytest.mark.parametrize(
    ("kind", "gold", "answer"),
    [
        ("box", BOX, "a dog"),
        ("mask", MASK, "a dog"),
        ("polygon", POLYGON, "a dog"),
        ("points", [POINT], "a dog"),
        ("count", 7, "a dog"),
        ("mask", MASK, []),
    ],
)
def test_within_the_limits_no_limit_is_named(kind, gold, answer):
    assert "more than" not in verify(gold, tag(answer), kind).reason


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "correct"),
    [
        ("mask", MASK, MASK, True),
        ("mask", MASK, {**MASK, "label": "dog", "score": 0.9}, True),
        ("mask", MASK, {**MASK, "counts": [5.0, 2, 2, 2, 5]}, True),
        ("mask", MASK, {**MASK, "counts": [5.5, 2.5, 2.5, 2.5, 5.5]}, False),
        ("mask", MASK, {**MASK, "mask": {"size": [4, 4], "counts": [0, 16]}}, False),
        ("mask", MASK, {**MASK, "polygon": [[0, 0], [4, 0], [4, 4], [0, 4]]}, False),
        ("mask", MASK, '{"size": [4, 4], "counts": [5, 2, 2, 2, 5], "counts": [0, 16]}', False),
        ("mask", MASK, {"size": None}, False),
        ("polygon", POLYGON, {"polygon": POLYGON}, True),
        ("polygon", POLYGON, {"polygon": POLYGON, "points": POLYGON}, True),
        ("polygon", POLYGON, {"polygon": POLYGON, "points": [[50, 50], [60, 50], [60, 60]]}, False),
        ("polygon", POLYGON, {"polygon": POLYGON, "segmentation": [[[50, 50], [60, 50], [60, 60]]]}, False),
        ("polygon", POLYGON, {"polygon": POLYGON, "label": "dog", "bbox": [0, 0, 10, 10]}, True),
        ("box", BOX, {"bbox": BOX, "other": [60, 60, 90, 90]}, False),
        ("box", BOX, "wrong: [10, 10, 50, 50]", False),
        ("point", POINT, {"point": [20, 15], "click": [90, 90]}, False),
    ],
)
def test_second_answers_under_another_key(kind, gold, answer, correct):
    assert verify(gold, tag(answer), kind).correct is correct


@pytest.mark.parametrize(
    "said",
    ["SALE 50%", '"SALE 50%"', "*SALE 50%*", "**SALE** 50%", "`SALE 50%`", "“SALE 50%”", "***SALE 50%***"],
)
def test_emphasis_is_no_text(said):
    assert verify("SALE 50%", tag(said), "ocr", metric="exact").correct
    assert verify("SALE 50%", tag(said), "text").correct


@pytest.mark.parametrize("said", ["SALE", "*SALE", "2*3*4", "SALE 5%", "not SALE 50%", "", "**", '""'])
def test_other_text_is_other_text(said):
    assert not verify("SALE 50%", tag(said), "ocr", metric="exact").correct
    assert not verify("SALE 50%", tag(said), "text").correct


def test_stars_of_the_text_itself_stay():
    assert (
        verify("2*3*4", tag("2*3*4"), "ocr", metric="exact").correct
        and not verify("234", tag("2*3*4"), "ocr", metric="exact").correct
    )
    assert verify("*SALE*", tag("*SALE*"), "ocr", metric="exact").correct
