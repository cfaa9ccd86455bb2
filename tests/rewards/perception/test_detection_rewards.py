"""Many boxes: by hand, against pycocotools and scipy, and under attack."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.boxes.detection import Detection, DetectionConfidence, DetectionMap, DetectionWeighted
from vlrl_rewards.boxes.matching import by_confidence, hungarian

GOLD = [{"bbox": [0, 0, 10, 10], "label": "cat"}, {"bbox": [20, 20, 40, 40], "label": "dog"}]
BOTH = '{"bbox_2d": [0,0,10,10], "label": "cat"}, {"bbox_2d": [20,20,40,40], "label": "dog"}'
HALF = '{"bbox_2d": [0,0,10,10], "label": "cat"}, {"bbox_2d": [20,20,40,30], "label": "dog"}'
FAR = ", ".join(
    f'{{"bbox_2d": [{900 + i},900,{905 + i},905], "label": "cat", "confidence": 0}}' for i in range(18)
)
REWARDS = [
    Detection(),
    Detection(matching="confidence"),
    Detection(denominator="f1"),
    DetectionMap(),
    DetectionWeighted(),
    DetectionConfidence(),
]


def answer(text):
    return f"<answer>[{text}]</answer>"


@pytest.mark.parametrize(
    ("text", "detection", "f1", "ap", "weighted"),
    [
        (BOTH, 1, 1, 1, 1),
        (HALF, 0.75, 0.75, (1 + 0.1) / 2, 0.7 * 0.75 + 0.3),
        ('{"bbox_2d": [0,0,10,10], "label": "CAT."}', 0.5, 2 / 3, 0.5, 0.7 * 0.5 + 0.3 * 0.75),  # one missed
        (BOTH.replace("dog", "cow"), 0.5, 0.5, 1 / 3, 0.7 * 0.5 + 0.3),  # a wrong, invented label
        (BOTH + ", " + FAR, 0.1, 2 / 11, 0.1, 0.7 * 0.1 + 0.3 * (1 - 0.45)),  # spam
    ],
)
def test_by_hand(text, detection, f1, ap, weighted):
    rewards = (
        (Detection(), detection),
        (Detection(denominator="f1"), f1),
        (DetectionMap(), ap),
        (DetectionWeighted(), weighted),
    )
    for reward, expected in rewards:
        assert reward.verify(GOLD, answer(text)).score == pytest.approx(expected, abs=1e-9), reward


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: r.name)
@pytest.mark.parametrize(
    "response",
    [
        "",
        "<answer></answer>",
        "a cat",
        "None",
        "<answer>[]</answer>",
        f"<think>{BOTH}</think>",
        answer(FAR),
        answer('{"bbox_2d": [0,0,9999,9999], "label": "cat"}'),
        "<answer>[[[</answer>",
        answer("{'Position': [10,10,0,0], 'Confidence': 0}"),
        "<answer>cat dog</answer>",
        "no fences at all, and no boxes",
    ],
)
def test_nothing_right_earns_nothing(reward, response):
    grade = reward.verify(GOLD, response)
    assert grade.score == 0 and not grade.correct


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: r.name)
def test_absence(reward):
    assert reward.verify([], "<answer>None</answer>").score == 1
    assert reward.verify([], "<answer>[]</answer>").correct
    assert reward.verify([], answer(BOTH)).score == 0
    assert (
        reward.verify([], "").score == reward.verify([], "I am not sure").score == 0
    )  # unlike od_reward, which gives 1 when no fence is there


def test_a_box_without_label_is_wrong_not_an_error():
    assert DetectionWeighted().verify(GOLD, answer("[0,0,10,10], [20,20,40,40]")).score == pytest.approx(0.3)


def test_confidence():
    said = (
        "{'Position': [0,0,10,10], 'Confidence': 0.8, 'label': 'cat'}, {'Position': [50,50,60,60], "
        "'Confidence': 0.3, 'label': 'dog'}"
    )
    assert DetectionConfidence().verify(GOLD, answer(said)).score == pytest.approx((0.8 + 0.7 + 0) / 3)
    assert (
        DetectionConfidence().verify(GOLD, answer(said.replace("0.8", "-7").replace("0.3", "99"))).score == 0
    )


def test_salience():
    scene = {"meta": {"weights": [3, 1]}}
    only_cat = answer('{"bbox_2d": [0,0,10,10], "label": "cat"}')
    assert Detection(salience="weights").verify(GOLD, only_cat, **scene).score == pytest.approx(0.75)
    assert Detection(salience="weights").verify(
        GOLD, answer(BOTH + ", " + FAR), **scene
    ).score == pytest.approx(4 / (4 + 18 * 2))
    with pytest.raises(ValueError, match="2 positive weights"):
        Detection(salience="weights").verify(GOLD, only_cat, meta={"weights": [3]})


def test_options_and_gold_are_checked():
    for bad in ({"position": 0.9}, {"iou_threshold": 2.0}):
        with pytest.raises(ValueError, match="must"):
            DetectionWeighted(**bad)
    with pytest.raises(ValueError, match="labels"):
        Detection(labels="yes").verify([[0, 0, 1, 1]], "")
    with pytest.raises(ValueError, match="no area"):
        Detection().verify([[0, 0, 0, 1]], "")


def test_invented_classes_cost():
    extra = BOTH + ', {"bbox_2d": [0,0,10,10], "label": "unicorn"}'
    assert DetectionMap(length_penalty=False, extra="ignore").verify(
        GOLD, answer(extra)
    ).score == pytest.approx(1)  # the released behaviour
    assert DetectionMap(length_penalty=False).verify(GOLD, answer(extra)).score == pytest.approx(2 / 3)


# --- references ---------------------------------------------------------------------------------------------


def test_hungarian_is_the_best_of_all_assignments():
    rng = np.random.default_rng(2)
    for _ in range(1000):
        score = rng.random((rng.integers(1, 5), rng.integers(1, 5))) * (rng.random() < 0.9)
        small = score if score.shape[0] <= score.shape[1] else score.T
        best = max(
            sum(small[i, j] for i, j in enumerate(p))
            for p in itertools.permutations(range(small.shape[1]), small.shape[0])
        )
        assert sum(score[i, j] for i, j in hungarian(score)) == pytest.approx(best)


def test_the_surest_box_chooses_first():
    score = np.array([[0.9, 0.8], [0.85, 0.1]])
    assert by_confidence(score, [0.2, 0.9]) == [(1, 0), (0, 1)]
    assert by_confidence(score, [0.9, 0.2], minimum=0.5) == [(0, 0)]
    assert hungarian(score) == [(0, 1), (1, 0)]
    assert hungarian(np.zeros((0, 3))) == by_confidence(np.zeros((2, 0)), [1, 1]) == []


coordinates = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 30), st.integers(1, 30))
boxes = st.lists(coordinates.map(lambda c: [c[0], c[1], c[0] + c[2], c[1] + c[3]]), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(boxes, boxes, st.randoms(use_true_random=False))
def test_bounds_perfection_and_order(gold, said, random):
    for reward in (Detection(), Detection(denominator="f1"), DetectionWeighted(), DetectionMap()):
        score = reward.verify(gold, f"<answer>{said}</answer>").score
        assert 0 <= score <= 1 + 1e-12
        assert reward.verify(gold, f"<answer>{gold}</answer>").score == pytest.approx(1)
        shuffled = random.sample(gold, len(gold))
        assert reward.verify(shuffled, f"<answer>{said}</answer>").score == pytest.approx(score, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(boxes, st.integers(1, 20))
def test_more_false_alarms_never_help(gold, extra):
    far = [[1000 + 20 * i, 1000, 1010 + 20 * i, 1010] for i in range(extra)]
    for reward in (Detection(), Detection(denominator="f1"), DetectionWeighted(), DetectionMap()):
        assert (
            reward.verify(gold, f"<answer>{gold + far}</answer>").score
            < reward.verify(gold, f"<answer>{gold}</answer>").score
        )
