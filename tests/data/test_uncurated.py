"""Rows before a selection: what each paper's selection keeps of them, and what demonstrations earn."""

import pytest

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward, Select, Source
from vlrl.types import Prompt, Rollout

REWARDS = {"problem": "math", "open_question": "verify", "measured_choice": "mcq"}


def rows(kind, n=120, **fields):
    return build(Source, {"name": "gen_uncurated", "ask": [kind], "count": n, **fields})()


def kept(select, made):
    return [row.id for row in build(Select, select)(made)]


@pytest.mark.parametrize("kind", sorted(REWARDS))
def test_demonstrations_are_paid_and_wrong_answers_are_not(kind):
    reward = build(Reward, REWARDS[kind])
    for row in list(rows(kind, 20)):
        right, wrong = (
            reward(Rollout(Prompt(row, ()), [1], text)) for text in (row.target, "<answer>nobody</answer>")
        )
        assert right == 1.0 and wrong == 0.0, row


def test_big_math_drops_what_is_not_open_and_what_is_settled():
    made = rows("problem")
    closed = {row.id for row in made if any(mark in row.question for mark in ("A) ", "Prove that", "https"))}
    settled = {row.id for row in made if row.meta["llama8b_solve_rate"] in (0, 1)}
    ids = {row.id for row in made}
    assert 0.3 < len(closed) / len(made) < 0.7 and 0.3 < len(settled) / len(made) < 0.7
    assert set(kept({"name": "open_ended"}, made)) == ids - closed
    between = {"name": "between", "by": "llama8b_solve_rate", "low": 0.05, "high": 0.95}
    assert set(kept(between, made)) == ids - settled


def test_crossthink_drops_answers_of_more_than_ten_words():
    made = rows("open_question")
    long = {row.id for row in made if len(row.answer.split()) > 10}
    assert long == {row.id for row in made if "whole sentence" in row.question}
    assert set(kept({"name": "checkable", "words": 10}, made)) == {row.id for row in made} - long
    assert 0.3 < len(long) / len(made) < 0.7


def test_medvlthinker_keeps_one_to_seven_of_sixteen():
    made = rows("measured_choice")
    assert {row.meta["pass_rate"] for row in made} == {count / 16 for count in range(17)}
    inside = [row.id for row in made if 1 <= 16 * row.meta["pass_rate"] <= 7]
    assert kept({"name": "pass_rate", "low": 0.0625, "high": 0.4375}, made) == inside


def test_rates_of_pictures_grow_with_the_object():
    made = build(Source, {"name": "gen_image_grounding", "rated": True, "count": 80})()
    sizes = sorted((row.answer[2] - row.answer[0], row.meta["pass_rate"]) for row in made)
    rates = [rate for _, rate in sizes]
    assert rates == sorted(rates) and rates[0] == 0 and rates[-1] == 1
    plain = build(Source, {"name": "gen_image_grounding", "count": 1})()[0]
    assert "pass_rate" not in plain.meta and plain.answer == made[0].answer
