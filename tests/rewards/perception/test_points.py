"""Points, clicks and GUI actions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.gui.actions import GuiAction
from vlrl_rewards.gui.grounding import GuiGrounding, harmonic
from vlrl_rewards.points.points import PointReward, Points
from vlrl_rewards.puzzles.plans import word_f1

from vlrl.types import CoordinateSpace

BOX = [10, 10, 30, 20]


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("<answer>(20, 15)</answer>", 1),
        ("<answer>[10, 10]</answer>", 1),
        ("<answer>{'point_2d': [29.9, 20]}</answer>", 1),
        ("click at (20, 15)", 1),
        ("<answer>(31, 15)</answer>", 0),
        ("<answer>(20, 15) (21, 15)</answer>", 0),
        ("<answer>[10,10,30,20]</answer>", 0),
        ("", 0),
        ("<answer>here</answer>", 0),
        ("<think>(20, 15)</think>", 0),
        ("<answer>[20, 15], [500, 500], [0, 0]</answer>", 0),
        ("<answer>(1e999, 15)</answer>", 0),
    ],
)
def test_click_in_box(text, hit):
    grade = PointReward().verify(BOX, text)
    assert (grade.score, grade.correct) == (hit, bool(hit))


def test_point_options():
    assert PointReward(from_box=True).verify(BOX, "<answer>[10,10,30,20]</answer>").score == 1
    assert PointReward(from_box=True).verify(BOX, "<answer>[30,20,10,10]</answer>").score == 0
    assert PointReward(radius=5).verify([10, 10], "<answer>(13, 14)</answer>").score == 1
    assert PointReward(radius=5).verify((10, 10), "<answer>(14, 14)</answer>").score == 0
    assert PointReward(radius=5, soft=True).verify(
        [10, 10], "<answer>(13, 14)</answer>"
    ).score == pytest.approx(math.exp(-1))
    assert PointReward(soft=True).verify(BOX, "<answer>(20, 15)</answer>").score == 1
    seen = {"spaces": (CoordinateSpace((100, 100), (1000, 1000), "seen"),)}
    assert PointReward().verify(BOX, "<answer>(200, 150)</answer>", **seen).score == 1
    with pytest.raises(ValueError, match="radius"):
        PointReward().verify([10, 10], "")


@pytest.mark.parametrize(
    ("text", "f1", "largest"),
    [
        ("<answer>[[5,5],[25,5]]</answer>", 1, 1),
        ("<answer>[[5,5]]</answer>", 2 / 3, 1 / 2),
        ("<answer>[[5,5],[6,6]]</answer>", 1 / 2, 1 / 2),  # two points in one box
        ("<answer>[[5,5],[25,5],[90,90],[91,91]]</answer>", 2 / 3, 1 / 2),
        ("<answer>none</answer>", 0, 0),
        ("", 0, 0),
        ("<answer>two</answer>", 0, 0),
    ],
)
def test_sets_of_points(text, f1, largest):
    gold = [[0, 0, 10, 10], [20, 0, 30, 10]]
    assert Points().verify(gold, text).score == pytest.approx(f1)
    assert Points(metric="max").verify(gold, text).score == pytest.approx(largest)
    assert Points(metric="exact").verify(gold, text).score == float(f1 == 1)


def test_points_against_points_and_nothing():
    assert Points(radius=2).verify([[0, 0], [10, 0]], "<answer>[[1,1],[10,1]]</answer>").score == 1
    assert Points().verify([], "<answer>None</answer>").score == 1
    assert Points().verify([], "<answer>[1,2]</answer>").score == Points().verify([], "").score == 0
    with pytest.raises(ValueError, match="radius"):
        Points().verify([[0, 0], [10, 0]], "")


def test_gui_g1_by_hand():
    scene = {"spaces": (CoordinateSpace((100, 50), (100, 50), "original"),)}
    assert GuiGrounding().verify(BOX, "<answer>[10,10,30,20]</answer>", **scene).score == pytest.approx(1.375)
    # sides off by 10 of 100 and 0 of 50: harmonic mean of .9, 1, 1, 1
    grade = GuiGrounding().verify(BOX, "<answer>[20,10,30,20]</answer>", **scene)
    assert grade.score == pytest.approx(1 + 0.25 * 0.5 + 0.125 * 4 / (1 / 0.9 + 3))
    for bad in (
        "<answer>[40,10,60,20]</answer>",
        "<answer>[0,0,100,50]</answer>",
        "",
        "<answer>x</answer>",
        "<answer>[10,10,30,20][0,0,1,1]</answer>",
    ):
        assert GuiGrounding().verify(BOX, bad, **scene).score == 0
    assert harmonic([1, -1]) == 0
    with pytest.raises(ValueError, match="size"):
        GuiGrounding().verify(BOX, "")


CLICK, TYPE, SCROLL = (
    {"action": "click", "box": BOX},
    {"action": "type", "text": "red shoes"},
    {"action": "scroll", "direction": "down"},
)


@pytest.mark.parametrize(
    ("gold", "text", "action", "full"),
    [
        (CLICK, "[{'action': 'click', 'point': [20, 15], 'input_text': 'no input text'}]", 1, 1),
        (CLICK, '{"action": "tap", "coordinate": [20, 15]}', 1, 1),
        (CLICK, '{"name": "click", "arguments": {"point": [20, 15]}}', 1, 1),
        (
            CLICK,
            (
                '<tool_call>{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": '
                "[20, "
                "15]}}</tool_call>"
            ),
            1,
            1,
        ),
        (CLICK, "Action: click(start_box='(20,15)')", 1, 1),
        (CLICK, "click(start_box='(90,15)')", 1, 0),
        (CLICK, "click(start_box='(20,15)') click(start_box='(90,15)')", 0, 0),
        (CLICK, "click(point=[20, 15])", 1, 1),
        (TYPE, "type(content='red shoes')", 1, 1),
        (SCROLL, 'scroll(direction="down")', 1, 1),
        (CLICK, "[{'action': 'click', 'point': [50, 15]}]", 1, 0),
        (CLICK, "[{'action': 'click'}]", 1, 0),
        (CLICK, "[{'action': 'scroll', 'point': [20, 15]}]", 0, 0),
        (CLICK, "click", 0, 0),
        (CLICK, "[{'action': 'click', 'point': [20, 15]}, {'action': 'scroll', 'direction': 'up'}]", 0, 0),
        (CLICK, "[{'action': 'click', 'point': [[20,15],[0,0]]}]", 1, 0),
        (TYPE, "[{'action': 'type', 'point': [-100, -100], 'input_text': 'Red shoes'}]", 1, 1),
        (TYPE, "{'action': 'type', 'text': 'e'}", 1, 0),
        (TYPE, "{'action': 'input_text', 'text': 'red'}", 1, 1),
        (TYPE, "{'action': 'type', 'text': ''}", 1, 0),
        (SCROLL, "{'action': 'swipe', 'direction': 'DOWN'}", 1, 1),
        (SCROLL, "{'action': 'scroll', 'direction': 'up'}", 1, 0),
        (SCROLL, "{'action': 'scroll'}", 1, 0),
        ({"action": "press_back"}, "{'action': 'navigate_back'}", 1, 1),
        ({"action": "complete"}, "{'action': 'wait'}", 0, 0),
    ],
)
def test_gui_actions(gold, text, action, full):
    assert GuiAction().verify(gold, f"<answer>{text}</answer>").score == full
    assert GuiAction(type_credit=0.5).verify(gold, f"<answer>{text}</answer>").score == (action + full) / 2
    assert GuiAction().verify(gold, f"<think>{text}</think>").score == 0


def test_gui_distance_and_broken_gold():
    scene = {"spaces": (CoordinateSpace((100, 100), (100, 100), "original"),)}
    gold = {"action": "click", "box": [0, 0, 100, 100], "point": [50, 50]}
    assert (
        GuiAction(relative=0.14)
        .verify(gold, "<answer>{'action': 'click', 'point': [52, 50]}</answer>", **scene)
        .score
        == 1
    )
    assert (
        GuiAction(relative=0.14)
        .verify(gold, "<answer>{'action': 'click', 'point': [90, 90]}</answer>", **scene)
        .score
        == 0
    )
    assert (
        GuiAction(radius=10)
        .verify(
            {"action": "click", "point": [50, 50]}, "<answer>{'action': 'click', 'point': [56, 58]}</answer>"
        )
        .score
        == 1
    )
    linked = (
        "<blink>[[10,10,30,20]]</blink><think>tap it</think><link>[{'Action': 'tap', 'point_2d': [20, "
        "15]}]</link>"
    )
    assert GuiAction(tag="link").verify(CLICK, linked).score == 1
    assert (
        GuiAction(tag="link").verify(CLICK, linked * 2).score
        == GuiAction(tag="link").verify(CLICK, "").score
        == 0
    )
    for broken in ({"action": "click"}, {"action": "type"}, {}, "click", 7):
        with pytest.raises(ValueError, match="answer"):
            GuiAction().verify(broken, "")
    assert word_f1("red shoes", "red hats") == 0.5 and word_f1("", "a") == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=6, unique=True),
    st.randoms(use_true_random=False),
)
def test_points_do_not_care_for_order(points, random):
    said = [list(p) for p in points]
    gold = random.sample(said, len(said))
    assert Points(radius=0.5).verify(gold, f"<answer>{said}</answer>").score == 1
    assert Points(radius=0.5).verify(gold, f"<answer>{[*said, [500, 500]]}</answer>").score < 1


BUTTON = {"action": "click", "box": [20, 20, 40, 40]}
IN, OUT = [30, 30], [90, 90]


@pytest.mark.parametrize(
    "said",
    [
        {"action": "click", "point": IN, "coordinate": OUT},
        {"action": "click", "coordinate": IN, "click_point": OUT},
        {"action": "click", "action_type": "scroll", "point": IN},
        {"action": "click", "arguments": {"point": IN}, "args": {"point": OUT}},
        {"action": "click", "point": IN, "arguments": {"point": OUT}},
        {"action": "click", "point": IN, "next": {"action": "scroll", "direction": "up"}},
        {"action": "click", "point": IN, "then": [{"action": "click", "point": OUT}]},
        f'{{"action": "scroll", "action": "click", "point": {IN}}}',
        f'{{"action": "click", "point": {OUT}, "point": {IN}}}',
    ],
)
def test_a_second_action_or_point_under_another_key_counts(said):
    assert GuiAction().verify(BUTTON, f"<answer>{said}</answer>").score == 0


@pytest.mark.parametrize(
    "said",
    [
        {"action": "click", "point": IN, "coordinate": IN},
        {"action": "tap", "action_type": "click", "point": IN, "thought": "the button"},
        {"name": "computer_use", "arguments": {"action": "click", "coordinate": IN}},
        {"action": "click", "point": IN, "arguments": {"point": IN}},
        {"action": "click", "point": IN, "element": {"name": "OK"}, "position": "top"},
    ],
)
def test_the_same_action_twice_is_one(said):
    assert GuiAction().verify(BUTTON, f"<answer>{said}</answer>").score == 1


def test_arguments_of_typing_and_scrolling_are_one():
    typed, scrolled = {"action": "type", "text": "red shoes"}, {"action": "scroll", "direction": "up"}
    for said, score in (
        ({"text": "red shoes"}, 1),
        ({"text": "red shoes", "value": "Red shoes"}, 1),
        ({"text": "red shoes", "app": "Shop"}, 1),
        ({"text": "red shoes", "value": "blue hats"}, 0),
        ({"content": "blue hats", "text": "red shoes"}, 0),
        ({}, 0),
    ):
        assert GuiAction().verify(typed, f"<answer>{ {'action': 'type', **said} }</answer>").score == score, (
            said
        )
    for said, score in (
        ({"direction": "up"}, 1),
        ({"direction": "up", "text": "page"}, 1),
        ({"direction": "up", "scroll_direction": "down"}, 0),
    ):
        assert (
            GuiAction().verify(scrolled, f"<answer>{ {'action': 'scroll', **said} }</answer>").score == score
        ), said
    assert (
        GuiAction()
        .verify(
            {"action": "open_app", "app": "Shop"}, "<answer>{'action': 'open', 'app_name': 'shop'}</answer>"
        )
        .score
        == 1
    )
