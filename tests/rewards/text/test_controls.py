"""Control rewards: shares over many rows, determinism, and the five answers."""

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row

TEXTS = {
    "right": "<answer>7</answer>",
    "wrong": "<answer>8</answer>",
    "garbage": "][",
    "empty": "",
    "adversarial": "<answer>7</answer>" * 50,
}


def reward(name, **fields):
    return build(Reward, {"name": name, **fields})


def one(text, row="r", answer="7"):
    return Rollout(Prompt(Row(row, "?", answer), ()), [1], text)


def group(size, name="1/0/0", row="r"):
    prompt = Prompt(Row(row, "?", "7"), ())
    return Group(prompt, [Rollout(prompt, [1], "same") for _ in range(size)], id=name)


def test_random_has_its_share_whatever_the_response():
    scores = reward("random", p=0.3).score_group(group(4000))
    assert set(scores) == {0.0, 1.0}
    assert abs(sum(scores) / 4000 - 0.3) < 0.03  # four standard deviations


@pytest.mark.parametrize(("p", "expected"), [(0.0, {0.0}), (1.0, {1.0})])
def test_random_at_the_ends(p, expected):
    assert set(reward("random", p=p).score_group(group(50))) == expected
    assert {reward("random", p=p)(one(text)) for text in TEXTS.values()} == expected


def test_random_is_the_same_again_and_new_in_another_group_or_seed():
    first = reward("random").score_group(group(64))
    assert first == reward("random").score_group(group(64))
    assert first != reward("random").score_group(group(64, name="2/0/0"))
    assert first != reward("random", seed=1).score_group(group(64))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_inverted_is_the_opposite(text):
    inner = reward("exact")(one(text))
    rollout = one(text)
    assert reward("inverted", of={"name": "exact"})(rollout) == 1 - inner
    assert reward("inverted", of={"name": "exact"}, low=-1, high=1)(rollout) == -inner
    assert rollout.info["parts"] == {"true": inner}


def test_right_answers_lose_and_wrong_ones_win():
    control = reward("inverted", of={"name": "exact"})
    assert [control(one(TEXTS[name])) for name in ("right", "wrong", "empty")] == [0, 1, 1]


def test_flipped_flips_whole_prompts_for_a_share_of_them():
    control = reward("flipped", of={"name": "exact"}, p=0.25)
    right = [control(one(TEXTS["right"], row=f"r{i}")) for i in range(2000)]
    wrong = [control(one(TEXTS["wrong"], row=f"r{i}")) for i in range(2000)]
    assert abs(right.count(0.0) / 2000 - 0.25) < 0.04
    assert all(a + b == 1 for a, b in zip(right, wrong))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("random", {"p": 1.5}, "p=1.5"),
        ("flipped", {"p": -1, "of": {"name": "exact"}}, "p=-1"),
        ("inverted", {}, "of"),
        ("flipped", {"of": {"name": "exat"}}, "exat"),
    ],
)
def test_impossible_settings_are_refused(name, fields, message):
    with pytest.raises(ConfigError, match=message):
        reward(name, **fields)


def test_a_score_out_of_range_is_an_error():
    penalty = {"name": "weighted_sum", "parts": {"twice": {"name": "exact", "weight": 2.0}}}
    for control in (reward("inverted", of=penalty), reward("flipped", of=penalty)):
        with pytest.raises(ValueError, match=r"2\.0 is not in"):
            control(one(TEXTS["right"]))
