"""The three sentences about a run, and the health of a step in words."""

import pytest

from vlrl.logging.story import change, health, story

NONE = {"columns": [], "rows": []}


def rows(values, **more):
    return [
        {"step": i, "phase": "rl", "reward/total": v, **{k: f(v) for k, f in more.items()}}
        for i, v in enumerate(values)
    ]


def test_change_by_hand():
    """Ten steps, fifths of two: means 0.05 and 0.95; spread 2 * 0.05^2 each, error sqrt(0.01 / 1 / 2)."""
    values = [0.0, 0.1, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.9, 1.0]
    assert change(rows(values), "reward/total") == (pytest.approx(0.05), pytest.approx(0.95), True)
    before, after, sure = change(rows([0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.2, 1.0]), "reward/total")
    assert (before, after, sure) == (0.5, 0.6, False)
    assert change(rows([0.0, 1.0]), "reward/total") is None and change(rows(values), "kl") is None


def test_a_run_that_learned():
    held = {"columns": ["start", "final"], "rows": [{"task": "digits", "values": [0.2, 0.9], "change": 0.7}]}
    log = rows(
        [0.1 * i for i in range(10)],
        **{"reward/accuracy": lambda v: v / 2, "reward/format": lambda v: 1.0, "truncated": lambda v: 0.5},
    )
    first, second, third = story(log, held, [], {"accuracy": 2.0})
    assert first == (
        "Held out, digits rose from 0.200 to 0.900. The reward in training rose from 0.05 to 0.85, first "
        "against last fifth of 10 steps."
    )
    assert second == "The change of the reward came from accuracy (+0.8)."
    assert third == "What looks wrong: 50% of the answers are cut off: raise sampling.max_tokens."


def test_a_run_that_did_not_and_what_is_wrong():
    held = {"columns": ["a", "b"], "rows": [{"task": "digits", "values": [0.5, 0.25], "change": -0.25}]}
    dead = {"slot": "rewards.iou", "level": "dead", "message": "always 0"}
    note = {"slot": "metrics", "level": "note", "message": "waits"}
    first, second, third = story(rows([0.5] * 9, **{"reward/iou": lambda v: 0.0}), held, [dead, note], {})
    assert "digits fell from 0.500 to 0.250. The reward in training did not clearly change" in first
    assert second == "No part of the reward clearly moved; at the end it is paid by iou 0."
    assert third == "What looks wrong: rewards.iou is dead (always 0)."
    hacked = story(rows([0.1 * i for i in range(9)]), held, [], {})
    assert "the reward rose while held-out digits fell" in hacked[2]


def test_a_short_run_says_so():
    first, second, third = story(rows([0.5]), NONE, [], {})
    assert first == (
        "Nothing was measured twice on held-out rows. 1 steps are too few to see a trend of the reward in "
        "training."
    )
    assert "enough numbers" in second and third == "Nothing that the log watches looks wrong."


def test_health_in_words():
    assert health({"truncated": 0.1, "entropy": 1.0, "grad_norm": 0.2, "tokens": 5, "kl": None}) == []
    assert health({"grad_norm": 0.0, "entropy": None}) == ["the gradient is zero: no group has an advantage"]
