"""Rewards over verify: right, wrong, garbage, empty, adversarial; broken golds raise."""

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward

SENTENCE = "a small red house by the river"
TABLE = [
    ("math", r"\frac{1}{2}", {}, r"\boxed{0.5}", r"\boxed{0.25}"),
    ("numeric", "1,234.5 m", {}, "<answer>1.2345 km</answer>", "<answer>1.2345 cm</answer>"),
    ("mcq", "B", {"choices": ("cat", "dog")}, "The answer is (B) dog.", "The answer is A or B."),
    ("yes_no", "yes", {}, "<answer>Yes</answer>", "<answer>I do not know</answer>"),
    (
        "text",
        ["the Beatles", "Beatles"],
        {},
        "<answer>Beatles</answer>",
        "<answer>Beatles, Stones, Kinks</answer>",
    ),
    ("text_metric", SENTENCE, {}, SENTENCE, "nothing else matches"),
    ("items", ["a1", "b2"], {}, "<answer>b2, a1</answer>", "<answer>c3</answer>"),
    ("instructions", [{"id": "no_comma"}], {}, "No pause", "One, two"),
    ("verify", "4", {}, "<answer>4</answer>", "<answer>5</answer>"),
    (
        "verify",
        "red",
        {"meta": {"kind": "list"}},
        "<answer>red</answer>",
        "<answer>red, blue, green, red</answer>",
    ),
]


@pytest.mark.parametrize(
    ("name", "gold", "row", "right", "bad"), TABLE, ids=[f"{row[0]}-{i}" for i, row in enumerate(TABLE)]
)
def test_reward(rollout, name, gold, row, right, bad):
    reward = build(Reward, name)
    made = rollout(gold, right, **row)
    assert reward(made) == 1.0 and made.info["verdict"]["reason"]
    assert reward(rollout(gold, bad, **row)) < 0.5
    for nothing in ("", " \n", "%$#@!", f"<think>{right}</think>", f"<think>{right}", "<answer></answer>"):
        assert reward(rollout(gold, nothing, **row)) == 0.0, nothing


@pytest.mark.parametrize(("spec", "gold", "said", "expected"), [
    ({"name": "text", "case_sensitive": True}, "Paris", "<answer>paris</answer>", 0.0),
    ({"name": "text", "case_sensitive": True}, "Paris", "<answer>Paris</answer>", 1.0),
    ({"name": "instructions"}, [{"id": "no_comma"}, {"id": "english_lowercase"}], "One two", 0.5),
    ({"name": "instructions", "all_or_nothing": True}, [{"id": "no_comma"}, {"id": "english_lowercase"}],
        "One two", 0.0),
    ({"name": "instructions", "all_or_nothing": True}, [{"id": "no_comma"}, {"id": "english_lowercase"}],
        "one two", 1.0),
])  # fmt: skip
def test_options(rollout, spec, gold, said, expected):
    assert build(Reward, spec)(rollout(gold, said)) == expected


@pytest.mark.parametrize(("form", "gold", "right", "half"), [
    ("json", {"a": 1, "b": "x"}, '{"a": 1.0, "b": "X"}', '{"a": 1, "b": "y"}'),
    ("table", "| a | b |\n|---|---|\n| 1 | 2 |", "a,b\n1,2", "a,c\n1,3"),
    ("ranking", ["d2", "d1"], "[d2] > [d1]", None),
])  # fmt: skip
def test_items(rollout, form, gold, right, half):
    reward = build(Reward, {"name": "items", "form": form})
    assert reward(rollout(gold, right)) == pytest.approx(1.0)
    if half:
        assert reward(rollout(gold, half)) == pytest.approx(0.5)
    assert reward(rollout(gold, "no structure here")) == 0.0


def test_ranking_by_hand(rollout):
    import math

    reward = build(Reward, {"name": "items", "form": "ranking"})
    worst = (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    assert reward(rollout(["d2", "d1"], "d1 > d2")) == pytest.approx(worst)
    assert reward(rollout(["d2", "d1"], "d2 > d2 > d2 > d1")) == pytest.approx(1.0)


def test_brier(rollout):
    reward = build(Reward, "brier")
    assert reward(rollout(1, "<answer>0.7</answer>")) == pytest.approx(-0.09)
    assert reward(rollout(0, "<answer>70%</answer>")) == pytest.approx(-0.49)
    for bad in ("", "<answer>7</answer>", "<answer>-0.1</answer>", "likely", "<think>0.9</think>"):
        assert reward(rollout(1, bad)) == -1.0


@pytest.mark.parametrize(
    ("name", "gold"),
    [
        ("math", ""),
        ("numeric", "seven"),
        ("mcq", "Z9"),
        ("yes_no", "maybe"),
        ("text", ""),
        ("brier", 3),
        ("items", []),
    ],
)
def test_broken_gold_raises(rollout, name, gold):
    with pytest.raises(ValueError, match="gold"):
        build(Reward, name)(rollout(gold, "<answer>1</answer>", choices=("a", "b") if name == "mcq" else ()))


def test_unknown_kind_is_refused_when_built():
    with pytest.raises(ConfigError, match="Did you mean 'math'"):
        build(Reward, {"name": "verify", "verifier": "maths"})
