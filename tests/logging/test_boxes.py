import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl.logging.boxes import drawn_mask, gold_marks, is_mark, predicted_marks
from vlrl.types import CoordinateSpace, Prompt, Rollout, Row


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([1, 2, 30, 40], [([1, 2, 30, 40], "")]),
        ([[1, 2, 30, 40], [5, 6, 7, 8]], [([1, 2, 30, 40], ""), ([5, 6, 7, 8], "")]),
        ([{"bbox_2d": [1, 2, 30, 40], "label": "cat"}], [([1, 2, 30, 40], "cat")]),
        ({"point": [5, 6]}, [([5, 6], "")]),
        ({"cat": {"boxes": [[1, 2, 30, 40]]}}, [([1, 2, 30, 40], "")]),
        ([2, 1, 4, 3], []),
        ([1, 2, 3, 4], []),
        ([30, 40, 1, 2], []),
        ("7", []),
        (7, []),
        (None, []),
        ([], []),
    ],
)
def test_gold_marks(answer, expected):
    assert [(mark["xy"], mark["label"]) for mark in gold_marks(answer)] == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 0, 1, 1], True),
        ([0, 1, 2, 3], False),
        ([1, 1, 1, 2], False),
        ([3, 3], True),
        ([2, 1], False),
        ([5], False),
    ],
)
def test_is_mark(numbers, expected):
    assert is_mark(numbers) is expected


def rollout(text, **fields):
    return Rollout(
        Prompt(Row("r", "q"), ()), [], text=text, spaces=(CoordinateSpace((200, 100), (100, 50)),), **fields
    )


def gold_of(sizes):
    """Gold marks of so many numbers."""
    return [{"xy": [0.0] * size, "label": ""} for size in sizes]


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        ("<answer>[1, 2, 30, 40]</answer>", [4], [[2, 4, 60, 80]]),
        ("[9, 9, 99, 99] so <answer>[1, 2, 30, 40]</answer>", [4], [[2, 4, 60, 80]]),
        ("<answer>[1, 2, 3, 4]</answer> no, <answer>[1, 2, 30, 40]", [4], [[2, 4, 60, 80]]),
        ('[{"bbox_2d": [1, 2, 30.5, 40]}]', [4], [[2, 4, 61, 80]]),
        ("(10, 20)", [2], [[20, 40]]),
        ("(10, 20)", [4], []),
        ("garbage [1, 2", [4], []),
        ("[1, \x1c 2, 3\u00a0, 4]", [4], []),
        ("[1,\t2,\n30,  40]", [4], [[2, 4, 60, 80]]),
        ("[\u0661, \u0662, \u0663, \u0664]", [4], []),
        ("[" + "9" * 400 + ", 2, 3, 4]", [4], []),
        ("", [4], []),
        ("[" + "1, " * 5000 + "1]", [4], []),
    ],
)
def test_predicted_marks_are_in_original_pixels(text, sizes, expected):
    assert [mark["xy"] for mark in predicted_marks(rollout(text), gold_of(sizes))] == expected


def test_a_flood_of_boxes_is_bounded_and_a_rewards_own_reading_wins():
    assert len(predicted_marks(rollout("[1, 2, 3, 4]" * 10_000), gold_of([4]))) == 50
    own = [{"xy": [1, 2, 3, 4], "label": "cat"}]
    assert predicted_marks(rollout("[5, 6, 7, 8]", info={"marks": own}), gold_of([4])) == own


@given(st.text(st.sampled_from("[](),.-0123456789 \t\n\x1c\x85\u00a0\u0665ab<answer>/"), max_size=80))
def test_no_text_is_an_error(text):
    for sizes in ([4], [2]):
        assert all(len(mark["xy"]) in sizes for mark in predicted_marks(rollout(text), gold_of(sizes)))


def test_polygons_and_masks_are_marks():
    polygon = {"segmentation": [[1, 2, 30, 2, 30, 40]], "category": "cat"}
    assert gold_marks(polygon) == [{"xy": [1, 2, 30, 2, 30, 40], "label": "cat"}]
    assert gold_marks([3, 1, 4, 1, 5, 9]) == []  # six numbers are no polygon unless a key says so
    said = predicted_marks(rollout("<answer>[1, 2, 30, 2, 30, 40]</answer>"), gold_marks(polygon))
    assert [mark["xy"] for mark in said] == [[2, 4, 60, 4, 60, 80]]
    mask = {"mask": {"size": [2, 3], "counts": [1, 2, 3]}}
    assert gold_marks(mask) == [{"rle": {"size": [2, 3], "counts": [1, 2, 3]}, "label": ""}]
    answer = rollout('<answer>{"size": [2, 3], "counts": [0, 6]}</answer>')
    assert predicted_marks(answer, gold_marks(mask))[0]["rle"]["counts"] == [0, 6]
    assert predicted_marks(rollout("<answer>no</answer>"), gold_marks(mask)) == []


def pixels(uri):
    """Which pixels of a drawn mask are coloured."""
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    return (np.asarray(picture)[..., 3] > 0).astype(int).tolist()


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_mask_is_drawn_as_coco_decodes_it(bits):
    from pycocotools import mask as coco

    inside = np.array(bits, dtype=np.uint8).reshape(3, 4)
    code = coco.encode(np.asfortranarray(inside))
    rle = {"size": [3, 4], "counts": code["counts"].decode("ascii")}
    assert pixels(drawn_mask(rle, "said")) == inside.tolist()


@pytest.mark.parametrize(
    "rle",
    [
        {"size": [2, 3], "counts": [1, 2]},
        {"size": [2, 3], "counts": [-1, 7]},
        {"size": [2], "counts": [2]},
        {"size": [1 << 20, 1 << 20], "counts": [1 << 40]},
        {"size": [2, 3], "counts": "`"},
        {"size": [2, 3], "counts": "oooooooooooooooooo"},
        {"size": ["x", 3], "counts": []},
        {"size": [2, 3], "counts": 5},
    ],
)
def test_a_broken_mask_is_not_drawn(rle):
    assert drawn_mask(rle, "gold") is None
