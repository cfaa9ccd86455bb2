"""Options that restore a release's own rule, each against the default: values by hand."""

import pytest
from vlrl_rewards.boxes.detection import DetectionConfidence
from vlrl_rewards.gui.actions import GuiAction
from vlrl_rewards.gui.grounding import GuiGrounding

from vlrl.types import CoordinateSpace

LEFT, RIGHT, FAR = [0, 0, 10, 10], [50, 0, 60, 10], [80, 80, 90, 90]
GOLD = [{"bbox_2d": LEFT, "label": "cup"}, {"bbox_2d": RIGHT, "label": "cup"}]


def boxes(*found):
    listed = [{"bbox_2d": box, "label": "cup", "confidence": sure} for box, sure in found]
    return f"<answer>{listed}</answer>".replace("'", '"')


@pytest.mark.parametrize(
    ("found", "zero", "ignore"),
    [
        (((LEFT, 0.9),), 0.9 / 2, 0.9),  # one of two found: the other adds a 0, or nothing
        (((LEFT, 0.9), (RIGHT, 0.7)), 0.8, 0.8),
        (((LEFT, 0.9), (FAR, 0.2)), (0.9 + 0.8) / 3, (0.9 + 0.8) / 2),
        (((FAR, 0.0),), 0.0, 1.0),  # nothing found, and doubted: the release pays it in full
    ],
)
def test_missed_boxes_lower_the_confidence_reward_unless_ignored(found, zero, ignore):
    for missed, score in (("zero", zero), ("ignore", ignore)):
        verdict = DetectionConfidence(missed=missed).verify(GOLD, boxes(*found))
        assert verdict.score == pytest.approx(score), missed


@pytest.mark.parametrize(
    ("gold", "answer", "compared_all", "clicks_alone"),
    [
        ({"action": "type", "text": "red shoes"}, {"action": "type", "text": "rain"}, 0, 1),
        ({"action": "scroll", "direction": "up"}, {"action": "scroll", "direction": "down"}, 0, 1),
        ({"action": "click", "box": [0, 0, 40, 40]}, {"action": "click", "point": [90, 90]}, 0, 0),
        ({"action": "click", "box": [0, 0, 40, 40]}, {"action": "click", "point": [20, 20]}, 1, 1),
        ({"action": "type", "text": "red shoes"}, {"action": "click", "point": [20, 20]}, 0, 0),
    ],
)
def test_arguments_are_compared_of_all_actions_or_of_clicks_alone(gold, answer, compared_all, clicks_alone):
    text = f"<answer>{answer}</answer>".replace("'", '"')
    spaces = (CoordinateSpace((100, 100), (100, 100)),)
    for compared, score in (("all", compared_all), ("clicks", clicks_alone)):
        assert GuiAction(compared=compared, radius=5).verify(gold, text, spaces=spaces).score == score


@pytest.mark.parametrize(("radius_in", "score"), [("original", 0), ("seen", 1)])
def test_a_radius_in_pixels_of_the_resized_picture(radius_in, score):
    # seen at half the size the points are 6, 8 apart, in the original 12, 16
    text = '<answer>{"action": "click", "point": [56, 58]}</answer>'
    reward = GuiAction(radius=10, radius_in=radius_in)
    spaces = (CoordinateSpace((200, 200), (100, 100)),)
    gold = {"action": "click", "point": [100, 100]}
    assert reward.verify(gold, text, spaces=spaces).score == score


@pytest.mark.parametrize(
    ("said", "gold", "score"),
    [
        ("no no no no shoes", "red shoes", 1),  # sets {no, shoes}, {red, shoes}: F1 1/2; with repetition 2/7
        ("a b c d", "a a a a", 0),  # sets 1/4 and 1: F1 2/5
        ("Red Shoes", "red shoes", 1),
        ("blue", "red shoes", 0),
    ],
)
def test_typed_texts_are_sets_of_words(said, gold, score):
    """r1gui.py:7-30 @ d43eea2 and reward_fn.py:163-184 @ 3ad21ff: the F1 is of sets, at least 0.5."""
    action = f'<answer>{{"action": "type", "text": "{said}"}}</answer>'
    assert GuiAction().verify({"action": "type", "text": gold}, action).score == score


def test_a_gold_text_is_needed_only_where_texts_are_compared():
    gold, text = {"action": "type"}, '<answer>{"action": "type", "text": "rain"}</answer>'
    assert GuiAction(compared="clicks").verify(gold, text).score == 1
    with pytest.raises(ValueError, match="needs a text"):
        GuiAction().verify(gold, text)


@pytest.mark.parametrize(
    ("box", "hit", "iou", "fit"),
    [
        ([0, 0, 40, 40], 1, 1.0, 1.0),
        ([0, 0, 40, 20], 1, 0.5, 4 / (1 + 1 + 1 + 1 / 0.8)),
        # the centre (41, 20) is just outside; 21 of 40 columns shared of 61
        ([19, 0, 63, 40], 0, 21 / 63, 4 / (1 / 0.81 + 1 + 1 / 0.77 + 1)),
    ],
)
def test_gui_g1_pays_overlap_without_a_hit_only_as_released(box, hit, iou, fit):
    spaces = (CoordinateSpace((100, 100), (100, 100)),)
    text, whole = f"<answer>{box}</answer>", hit + 0.25 * iou + 0.125 * fit
    for needs_hit, score in ((False, whole), (True, whole if hit else 0.0)):
        verdict = GuiGrounding(needs_hit=needs_hit).verify([0, 0, 40, 40], text, spaces=spaces)
        assert verdict.score == pytest.approx(score) and verdict.correct == bool(hit)
