"""Length rewards and combinations, by hand."""

import math
from types import SimpleNamespace

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.types import Group

RIGHT, WRONG = "<answer>4</answer>", "<answer>5</answer>"


def score(spec, rollout):
    return build(Reward, spec)(rollout)


@pytest.mark.parametrize(
    ("text", "tokens", "finish", "expected"),
    [
        (RIGHT, 1, "stop", 1 + (1 + math.cos(math.pi / 100)) / 2),
        (RIGHT, 50, "stop", 1.5),
        (WRONG, 50, "stop", -5.0),
        (WRONG, 1, "stop", -10 * (1 + math.cos(math.pi / 100)) / 2),
        (RIGHT, 100, "stop", -10.0),
        (RIGHT, 250, "stop", -10.0),
        (RIGHT, 50, "length", -10.0),
    ],
)
def test_cosine_length(rollout, text, tokens, finish, expected):
    spec = {"name": "cosine_length", "of": {"name": "math"}, "max_tokens": 100}
    assert score(spec, rollout("4", text, ids=tokens, finish=finish)) == pytest.approx(expected)


def test_the_span_of_the_cosine_is_the_runs(rollout):
    reward = build(Reward, {"name": "cosine_length", "of": {"name": "math"}, "max_tokens": 0})
    reward.setup(SimpleNamespace(sampling=SimpleNamespace(max_tokens=32)))
    assert reward(rollout("4", RIGHT, ids=16)) == pytest.approx(1.5)  # half of the way from 2 to 1
    assert reward(rollout("4", RIGHT, ids=32)) == -10.0
    with pytest.raises(ConfigError, match="max_tokens"):
        reward.longest(SimpleNamespace(sampling=SimpleNamespace()))


def test_open_rs_counts_characters_and_its_cosine_goes_on(rollout):
    """rewards.py:318-334 with 0.5 to 1 and 0 to -0.5: at a quarter of 1000 characters cos is 1 / sqrt 2, at a
    half 0, at 1000 -1, at 2000 1 again, whether the answer was cut or not."""
    spec = {
        "name": "cosine_length",
        "of": {"name": "math"},
        "unit": "characters",
        "max_tokens": 1000,
        "right": [1.0, 0.5],
        "wrong": [0.0, -0.5],
        "exceed": None,
    }
    for length, share in ((250, (1 + 2**-0.5) / 2), (500, 0.5), (1000, 0.0), (2000, 1.0)):
        for text, low in ((RIGHT, 0.5), (WRONG, -0.5)):
            padded = "a " * ((length - len(text)) // 2) + " " * ((length - len(text)) % 2) + text
            for finish in ("stop", "length"):
                made = rollout("4", padded, ids=3, finish=finish)
                assert score(spec, made) == pytest.approx(low + 0.5 * share, abs=1e-12)


def test_length_budget(rollout):
    exact = {"name": "length_budget", "tokens": 100, "alpha": 0.001}
    assert score(exact, rollout("4", RIGHT, ids=150)) == pytest.approx(0.95)
    assert score(exact, rollout("4", WRONG, ids=50)) == pytest.approx(-0.05)
    assert score(exact, rollout("4", WRONG, ids=50, meta={"tokens": 50})) == 0.0
    assert score(exact, rollout("4", WRONG, ids=9000)) == -1.0
    at_most = {**exact, "mode": "max", "alpha": 0.01}
    assert score(at_most, rollout("4", RIGHT, ids=120)) == pytest.approx(0.3)
    assert score(at_most, rollout("4", RIGHT, ids=10)) == 1.0
    assert score(at_most, rollout("4", WRONG, ids=10)) == 0.0


def test_length_range_and_its_soft_edge(rollout):
    bounds = {"name": "length_range", "low": 10, "high": 20}
    assert [score(bounds, rollout("4", "x", ids=n)) for n in (10, 20, 5, 25, 90)] == [0, 0, -0.5, -0.25, -1]
    assert score(bounds, rollout("4", "x", ids=15, finish="length")) == -1
    at_least = {"name": "length_range", "low": 40, "high": 100_000}  # 40 is missed, not 100,000
    assert [score(at_least, rollout("4", "x", ids=n)) for n in (10, 30, 40, 900)] == [-0.75, -0.25, 0, 0]
    soft = {"name": "length_range", "high": 80, "scale": 20}
    assert [score(soft, rollout("4", "x", ids=n)) for n in (80, 90, 100, 200)] == [0, -0.5, -1, -1]
    for broken in (
        {"name": "length_range", "high": 0},
        {"name": "length_range", "low": 5, "high": 1},
        {"name": "cosine_length", "max_tokens": -1},
    ):
        with pytest.raises(ConfigError):
            build(Reward, broken)


PARTS = {"format": {"name": "tag_format"}, "accuracy": {"name": "math", "weight": 2.0}}
FORMED = "<think>a</think><answer>4</answer>"


def test_sum_product_gate(rollout):
    total = {"name": "weighted_sum", "parts": PARTS}
    made = rollout("4", FORMED)
    assert score(total, made) == 3.0 and made.info["parts"] == {"format": 1.0, "accuracy": 1.0}
    assert score({**total, "average": True}, rollout("4", RIGHT)) == pytest.approx(2 / 3)
    assert score({"name": "product", "parts": PARTS}, rollout("4", RIGHT)) == 0.0
    assert score({"name": "product", "parts": PARTS}, made) == 1.0
    gate = {"name": "gated", "parts": PARTS, "otherwise": -1.0}
    shut = rollout("4", RIGHT)
    assert score(gate, shut) == -1.0 and shut.info["parts"] == {"format": 0.0}
    assert score(gate, made) == 1.0
    assert score(gate, rollout("5", FORMED)) == 0.0


def test_product_of_two_negatives_is_not_positive(rollout):
    parts = {"a": {"name": "repetition"}, "b": {"name": "brier"}}
    assert score({"name": "product", "parts": parts}, rollout(1, "")) == 0.0


def group_of(rollout, *texts):
    rollouts = [rollout("4", text) for text in texts]
    return Group(rollouts[0].prompt, rollouts)


def test_lexicographic(rollout):
    group = group_of(rollout, FORMED, RIGHT, WRONG, RIGHT)
    spec = {
        "name": "lexicographic",
        "parts": {"accuracy": {"name": "math"}, "format": {"name": "tag_format"}},
    }
    assert build(Reward, spec).score_group(group) == pytest.approx([1.0, 0.5, 0.0, 0.5])
    assert build(Reward, spec).score_group(group_of(rollout, RIGHT)) == [0.5]


def test_normalised_sum(rollout):
    group = group_of(rollout, FORMED, RIGHT, WRONG, WRONG)
    spec = {
        "name": "normalised_sum",
        "eps": 0.0,
        "parts": {"accuracy": {"name": "math"}, "format": {"name": "tag_format"}},
    }
    third = math.sqrt(3)
    assert build(Reward, spec).score_group(group) == pytest.approx(
        [1 + third, 1 - 1 / third, -1 - 1 / third, -1 - 1 / third]
    )
    assert build(Reward, spec).score_group(group_of(rollout, RIGHT, RIGHT)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{RIGHT}<confidence>0.8</confidence>", 1 - 0.04),
        (f"{WRONG}<confidence>0.8</confidence>", -0.64),
        (f"{WRONG}<confidence>0%</confidence>", 0.0),
        (RIGHT, -1.0),
        (f"{RIGHT}<confidence>2</confidence>", -1.0),
        (f"{WRONG}<confidence>0</confidence><confidence>1</confidence>", -1.0),
        (f"<think>{RIGHT}<confidence>1</confidence></think>", -1.0),
    ],
)
def test_calibrated(rollout, text, expected):
    assert score(
        {"name": "calibrated", "parts": {"accuracy": {"name": "math"}}}, rollout("4", text)
    ) == pytest.approx(expected)


def test_empty_parts_and_unknown_parts():
    with pytest.raises(ConfigError, match="at least one"):
        build(Reward, {"name": "weighted_sum", "parts": {}})
    with pytest.raises(ConfigError, match="matth"):
        build(Reward, {"name": "product", "parts": {"a": {"name": "matth"}}})


def test_parts_are_correct_by_their_own_correct_at(rollout):
    """BLEU, ROUGE ... are correct from 0.5 on: a gate of them opens there, and so do calibration and the
    cosine of the length."""
    half, gold = rollout("one red big car", "<answer>one red old bus</answer>", 10), {"name": "text_metric"}
    assert score(gold, half) == 0.5
    for correct_at, open_gate in ((0.5, True), (0.6, False)):
        part = {**gold, "correct_at": correct_at}
        assert score(
            {"name": "gated", "parts": {"a": part, "b": {"name": "tag_count", "tags": ["answer"]}}}, half
        ) == float(open_gate)
        confident = rollout("one red big car", "<answer>one red old bus</answer><confidence>1</confidence>")
        assert score({"name": "calibrated", "parts": {"a": part}}, confident) == (1.0 if open_gate else -1.0)
        spec = {
            "name": "cosine_length",
            "of": part,
            "max_tokens": 100,
            "right": [1.0, 1.0],
            "wrong": [0.0, 0.0],
        }
        assert score(spec, half) == float(open_gate)


@pytest.mark.parametrize(
    ("spec", "gold", "right", "wrong"),
    [
        ({"name": "brier"}, 1, "0.6", "0.4"),
        (
            {"name": "code_edit"},
            "a = 1",
            "<answer>```\na = 1\n```</answer>",
            "<answer>```\na = 2\n```</answer>",
        ),
        ({"name": "length_budget", "tokens": 10}, "7", "<answer>7</answer>", "<answer>8</answer>"),
        (
            {"name": "calibrated", "parts": {"a": {"name": "math"}}},
            "7",
            "<answer>7</answer><confidence>0.1</confidence>",
            "<answer>8</answer>",
        ),
        (
            {"name": "text_metric"},
            "one red big car",
            "<answer>one red old bus</answer>",
            "<answer>one new old bus</answer>",
        ),
        ({"name": "closeness"}, 100, "<answer>104.9</answer>", "<answer>106</answer>"),
    ],
)
def test_correct_at_separates_right_from_wrong(spec, gold, right, wrong, rollout):
    reward = build(Reward, spec)
    assert [reward.correct(made, reward(made)) for made in (rollout(gold, right), rollout(gold, wrong))] == [
        True,
        False,
    ]
