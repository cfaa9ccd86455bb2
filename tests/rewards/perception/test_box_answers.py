"""What is read as a box or a point, what is not, and what units it is in."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards import verify
from vlrl_rewards.boxes.reading import (
    committed_item,
    gold_boxes,
    gold_points,
    parse_boxes,
    parse_points,
    read_boxes,
    to_original,
)
from vlrl_rewards.literals import find_values

from vlrl.types import CoordinateSpace

ONE = (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    "text",
    [
        "[1,2,3,4]",
        "[1, 2, 3, 4]",
        "(1.0, 2.0, 3.0, 4)",
        "1, 2, 3, 4",
        "1 2 3 4",
        "[[1,2],[3,4]]",
        "(1,2),(3,4)",
        "(1, 2) to (3, 4)",
        "<box>1,2,3,4</box>",
        "<box>[[1, 2, 3, 4]]</box>",
        "<|box_start|>(1,2),(3,4)<|box_end|>",
        "<bbox>[1,2,3,4]</bbox>",
        '{"bbox_2d": [1, 2, 3, 4]}',
        '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "dog"}]\n```',
        "{'bbox': [1, 2, 3, 4]}",
        "{[1, 2, 3, 4]}",
        "[{'Position': [1, 2, 3, 4], 'Confidence': 0.9}, {'Position': [5,",
        '{"x1": 1, "y1": 2, "x2": 3, "y2": 4}',
        "The dog is at [1, 2, 3, 4].",
        "[+1, 2e0, 3., 4.00]",
    ],
)
def test_reads_every_usual_form(text):
    boxes = parse_boxes(text)
    assert boxes is not None and [b.xyxy for b in boxes] == [ONE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a dog",
        "1 2 3",
        "[1,2,3]",
        "[1,2,3,4,5]",
        "[1,2,3,nan]",
        "[1,2,3,1e400]",
        "[1,2,3,'4']",
        "[[[",
        "{}x",
        "[true,1,2,3]",
    ],
)
def test_garbage_is_no_box(text):
    assert parse_boxes(text) is None


@pytest.mark.parametrize(
    "text", ["None", "[]", "none.", "No objects found", "```json\n[]\n```", "there are no objects"]
)
def test_saying_none_is_an_empty_list(text):
    assert parse_boxes(text) == []


@pytest.mark.parametrize(
    ("text", "label", "score"),
    [
        ("[{'Position': [1,2,3,4], 'Confidence': 0.25, 'label': 'cat'}]", "cat", 0.25),
        ('{"dog": [1,2,3,4]}', "dog", None),
        ('{"objects": [{"bbox": [1,2,3,4], "category": "car"}]}', "car", None),
        ("<ref>a red bus</ref><box>(1,2),(3,4)</box>", "a red bus", None),
        ('{"bbox_2d": [1,2,3,4], "confidence": "high"}', "", None),
    ],
)
def test_labels_and_scores(text, label, score):
    (box,) = parse_boxes(text)
    assert (box.xyxy, box.label, box.score) == (ONE, label, score)


@pytest.mark.parametrize(
    ("layout", "expected"), [("xywh", (1, 2, 4, 6)), ("cxcywh", (-0.5, 0, 2.5, 4)), ("yxyx", (2, 1, 4, 3))]
)
def test_layouts(layout, expected):
    assert parse_boxes("[1,2,3,4]", layout)[0].xyxy == expected
    with pytest.raises(ValueError, match="xyxy, xywh"):
        parse_boxes("[1,2,3,4]", "yx")


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("(1, 2)", [(1, 2)]),
        ("[1,2], [3,4]", [(1, 2), (3, 4)]),
        ("1, 2", [(1, 2)]),
        ('<point x="1.5" y="2" alt="a">a</point>', [(1.5, 2)]),
        ('<points x1="1" y1="2" x2="3" y2="4">', [(1, 2), (3, 4)]),
        ("{'action': 'click', 'coordinate': [1, 2]}", [(1, 2)]),
        ('[{"point_2d": [1, 2], "label": "a"}]', [(1, 2)]),
        ('{"x": 1, "y": 2}', [(1, 2)]),
        ("none", []),
        ("[1,2,3]", None),
        ("here", None),
    ],
)
def test_points(text, points):
    found = parse_points(text)
    assert (None if found is None else [p.xy for p in found]) == points


def test_units_are_converted_once():
    space = {
        units: CoordinateSpace((200, 100), (50, 50), units)
        for units in ("seen", "original", "unit", "per_mille")
    }
    assert to_original((10, 10, 20, 20), (space["seen"],)) == (40, 20, 80, 40)
    assert to_original((0.5, 0.5), (space["unit"],)) == (100, 50)
    assert to_original((500, 500), (space["original"], space["per_mille"]), picture=1) == (100, 50)
    assert to_original((1, 2), ()) == (1, 2)
    assert read_boxes("[10,10,20,20]", (space["seen"],))[0].xyxy == (40, 20, 80, 40)
    with pytest.raises(ValueError, match="counts from 0"):
        to_original((1, 2), (space["unit"],), picture=1)


@pytest.mark.parametrize(
    ("text", "tagged", "expected"),
    [
        ("[1,2,3,4]", True, ONE),
        ("[1,2,3,4] [1,2,3,4]", True, ONE),
        ("[1,2,3,4] or [1,2,3,5]", True, None),
        ("[1,2,3,4] or [1,2,3,5]", False, None),
        ("The cat is at [9,9,10,10]. The dog is at [1,2,3,4].", False, ONE),
        ("The cat is at [9,9,10,10]. The dog is at [1,2,3,4].", True, None),
    ],
)
def test_one_box_must_be_committed_to(text, tagged, expected):
    chosen = committed_item(parse_boxes(text), text, tagged)
    assert (chosen and chosen.xyxy) == expected


@pytest.mark.parametrize(
    "gold",
    [
        [1, 2, 3, 4],
        [[1, 2, 3, 4]],
        "[1, 2, 3, 4]",
        {"bbox": [1, 2, 3, 4]},
        [{"bbox_2d": (1, 2, 3, 4), "label": "x"}],
    ],
)
def test_gold_forms(gold):
    assert [b.xyxy for b in gold_boxes(gold)] == [ONE]


@pytest.mark.parametrize("gold", [[1, 2, 3], "a dog", [3, 2, 1, 4], [1, 2, 1, 4], {"label": "dog"}, 7, None])
def test_broken_gold_raises(gold):
    with pytest.raises(ValueError, match="gold"):
        gold_boxes(gold)


def test_gold_none_and_points():
    assert gold_boxes([]) == gold_boxes("None") == []
    assert gold_points((1, 2))[0].xy == (1, 2)
    with pytest.raises(ValueError, match="no point"):
        gold_points("nowhere")


def test_reads_numpy_gold():
    numpy = pytest.importorskip("numpy")
    assert gold_boxes(numpy.array([1, 2, 3, 4]))[0].xyxy == ONE


@pytest.mark.parametrize(
    "bomb",
    [
        "[" * 19000,
        '"\\' * 9000,
        "'" * 19000,
        "[1,2,3,4]" * 2200,
        "1" * 19000,
        "1,2," * 4000,
        "{" * 9000 + "}" * 9000,
        "<box>" * 3000,
        "x=1 " * 4500,
        "[1," * 6000,
        " " * 19000,
    ],
)
def test_bombs_are_read_in_time(bomb):
    seconds = []
    for _ in range(2):  # the better of two: the interpreter may clean up after other tests in one
        started = time.thread_time()
        parse_boxes(bomb), parse_points(bomb)
        seconds.append(time.thread_time() - started)
    assert min(seconds) < 1.0


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="[](){}<>,:'\"0123456789.-eE \nboxPositn", max_size=80))
def test_never_raises_on_text(text):
    for box in parse_boxes(text) or []:
        assert all(abs(v) < 1e9 for v in box.xyxy)
    parse_points(text)


leaf = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(-1e6, 1e6), st.text(max_size=8)
)
nested = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(nested, min_size=1, max_size=4), st.booleans())
def test_valid_json_is_read_alike_alone_and_in_a_sentence(value, pretty):
    """Alone it goes through the standard library, in a sentence through our own reader."""
    text = json.dumps(value, indent=2 if pretty else None)
    assert [f.value for f in find_values(text)] == [value]
    assert [f.value for f in find_values(f"Here: {text}.")] == [value]


def test_nesting_is_bounded_either_way():
    assert (
        find_values("[" * 24 + "]" * 24)
        and not find_values("[" * 25 + "]" * 25)
        and not find_values("[1, " * 300 + "1" + "]" * 300)
    )


# --- a second answer under another key ----------------------------------------------------------------------

A, B = [10, 10, 30, 30], [60, 60, 90, 90]
HEDGED_BOXES = [
    {"bbox_2d": A, "bbox": B},
    {"bbox": A, "label": "cat", "alternative": B},
    {"bbox": A, "candidates": [B]},
    {"bbox": A, "second": {"bbox": B}},
    {"x1": 10, "y1": 10, "x2": 30, "y2": 30, "bbox": B},
    {"box": A, "position": B, "confidence": 0.9},
]


@pytest.mark.parametrize(
    "said",
    [
        *map(json.dumps, HEDGED_BOXES),
        f'{{"bbox": {B}, "bbox": {A}}}',
        f"{{'bbox': {A}, 'bbox': {B}, 'label': 'cat'}}",
    ],
)
def test_a_second_box_under_another_key_counts(said):
    assert {box.xyxy for box in parse_boxes(said)} == {tuple(A), tuple(B)}
    for gold in (A, B):
        assert verify(gold, f"<answer>{said}</answer>", "box").score == 0
        assert verify([gold], f"<answer>{said}</answer>", "boxes").score == 0.5


def test_the_same_box_twice_is_one():
    for said in (
        {"bbox_2d": A, "bbox": A},
        {"bbox": A, "point_2d": [20, 20], "size": [20, 20], "color": [255, 0, 0, 1]},
        {"bbox": A, "polygon": [A, B]},
    ):
        assert [box.xyxy for box in parse_boxes(json.dumps(said))] == [tuple(A)], said
        assert verify(A, f"<answer>{json.dumps(said)}</answer>", "box").score == 1
    row = {"bbox": A, "bbox_normalised": [0.1, 0.1, 0.3, 0.3], "image": [0, 0, 100, 100]}
    assert [box.xyxy for box in gold_boxes(row)] == [tuple(A)], "a gold row may hold other numbers"


HEDGED_POINTS = [
    {"point": [20, 20], "click": [70, 70]},
    {"point_2d": [20, 20], "label": "ok", "other": [70, 70]},
    {"x": 20, "y": 20, "point": [70, 70]},
    {"point": [20, 20], "second": {"point": [70, 70]}},
]


@pytest.mark.parametrize(
    "said",
    [
        *map(json.dumps, HEDGED_POINTS),
        '{"point": [20, 20], "point": [70, 70]}',
        "{'x': 20, 'y': 20, 'x': 70}",
    ],
)
def test_a_second_point_under_another_key_counts(said):
    assert len({point.xy for point in parse_points(said)}) == 2
    for gold in (A, B):
        assert verify(gold, f"<answer>{said}</answer>", "point").score == 0


def test_the_same_point_twice_is_one():
    for said in (
        {"point": [20, 20], "click": [20, 20]},
        {"point": [20, 20], "image_size": [100, 100], "time": [1, 2]},
        {"x": 20, "y": 20, "confidence": 1},
    ):
        assert [point.xy for point in parse_points(json.dumps(said))] == [(20, 20)], said
    assert parse_points('{"X": 1, "point": [20, 20], "X": 3}'), "a repeated half of a point is read"
