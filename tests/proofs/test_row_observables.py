"""Observables of rows and visits, by hand on small records."""

import pytest
from proof_kit.observables import OBSERVABLES, Record, StepRecord
from proof_kit.row_observables import mean_meta, prompts_with, rows_of, texts_with

from vlrl.types import Group, Prompt, Rollout, Row


def group(row_id, outcomes, texts=(), task="sums", version=0, **meta):
    row = Row(row_id, f"question of {row_id}", "1", task=task, meta=meta)
    prompt = Prompt(row, ({"role": "user", "content": row.question},))
    texts = texts or [f"{row_id} {place}" for place in range(len(outcomes))]
    rollouts = [
        Rollout(prompt, [1], text, correct=correct, version=version)
        for text, correct in zip(texts, outcomes, strict=True)
    ]
    return Group(prompt, rollouts)


def record(*steps, gradients=None):
    return Record([StepRecord(groups, groups, gradients or {}) for groups in steps])


def test_rows_that_come_again_and_texts_that_come_again():
    seen = record(
        [group("a", [True, False], ["x", "y"]), group("b", [True, True], ["x", "x"])],
        [group("a", [True, False], ["x", "z"])],
        [group("c", [True])],
    )
    assert OBSERVABLES["repeated_rows"](seen) == pytest.approx(1 / 4)
    assert OBSERVABLES["repeated_texts"](seen) == pytest.approx(
        1 / 7
    )  # the x of row a in the second step; b's texts are of one step
    assert OBSERVABLES["repeated_rows"](record()) == OBSERVABLES["repeated_texts"](record()) == 0


def test_hard_rows_that_come_more_often():
    easy, hard, middle = group("a", [True, True]), group("b", [False, False]), group("c", [True, False])
    assert (
        OBSERVABLES["accuracy_by_visits"](record([easy, hard], [easy, hard])) == 0
    )  # as often as each other
    seen = record([easy, middle, hard], [middle, hard], [hard])
    assert OBSERVABLES["accuracy_by_visits"](seen) == pytest.approx(-1)


def test_how_hard_the_groups_are():
    seen = record(
        [group("a", [True, False]), group("b", [True, True, True, False]), group("c", [True, True])]
    )
    assert OBSERVABLES["outcome_variance"](seen) == pytest.approx((1 / 4 + 3 / 16 + 0) / 3)
    assert OBSERVABLES["accuracy_spread"](seen) == pytest.approx(
        (((1 / 4) ** 2 + 0 + (1 / 4) ** 2) / 3) ** 0.5
    )


def test_weight_of_groups_in_the_gradient():
    light, heavy = group("a", [True, False]), group("b", [True, False])
    gradients = {}
    for one, weight in ((light, 0.5), (heavy, 1.5)):
        for rollout, advantage in zip(one, (2.0, -1.0)):
            rollout.advantage = advantage
            gradients[id(rollout)] = [-weight * advantage]
    assert OBSERVABLES["gradient_spread_over_groups"](
        record([light, heavy], gradients=gradients)
    ) == pytest.approx(0.5)
    equal = {key: [value[0] / abs(value[0])] for key, value in gradients.items()}
    for rollout in (*light, *heavy):
        rollout.advantage = 1.0
    assert OBSERVABLES["gradient_spread_over_groups"](record([light, heavy], gradients=equal)) == 0


def test_versions_of_the_policy():
    assert (
        OBSERVABLES["policy_versions"](
            record([group("a", [True], version=1)], [group("b", [True], version=2)])
        )
        == 1
    )
    assert (
        OBSERVABLES["policy_versions"](
            record([group("a", [True], version=1)], [group("b", [True], version=1)])
        )
        == 0.5
    )


def test_named_observables():
    seen = record(
        [
            group("a", [True, False], ["yes", "no"], level=2),
            group("b", [True], ["yes"], task="chains", level=4),
            group("c", [True]),
        ]
    )
    assert mean_meta(seen, "level") == 3 and mean_meta(seen, "unknown") == 0
    assert rows_of(seen, "chains") == pytest.approx(1 / 3)
    assert prompts_with(seen, "of [ab]$") == pytest.approx(2 / 3)
    assert texts_with(seen, "^y") == pytest.approx(2 / 4)
