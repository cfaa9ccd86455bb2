"""VCRL's variance, gate and memory bank; SELF's gate; what the presets keep. Numbers by hand."""

from __future__ import annotations

import json

import pytest
from make import end_step, group, run
from tiny import steps, text_run

from vlrl.methods.papers.self import Self
from vlrl.methods.papers.vcrl import Vcrl, VcrlVarianceFilter, normalised_variance
from vlrl.plugins.registry import ConfigError
from vlrl.types import Rollout, Row

ROWS = [Row(f"r{i}", f"q{i}") for i in range(8)]


@pytest.mark.parametrize(
    ("rewards", "p"),
    [
        ([1, 1, 0, 0], 1.0),
        ([1, 0, 0, 0], 0.75),  # k (G - k) / (2 * 2) = 3/4; variance 1/4, largest 4 / (4 * 3) = 1/3
        ([1, 0, 0], 1.0),  # odd: (G + 1) / (4 G) = 1/3, and k = 1 reaches it
        ([1, 1, 1, 1], 0.0),
        ([0.5, 0.0], 0.25),  # variance 1/8, largest 1/2
        ([1], 0.0),
        ([], 0.0),
    ],
)
def test_normalised_variance(rewards, p):
    assert normalised_variance(rewards) == pytest.approx(p)


def test_filter_by_the_variance_of_outcomes():
    gate = VcrlVarianceFilter(min_variance=0.75)
    kept = group(1.1, 0.1, 0.1, 0.1, raw={"acc": [1, 0, 0, 0], "format": [1, 1, 1, 1]})
    assert gate(kept).keep and gate(group(1.1, 1.1, raw={"acc": [1, 1]})) == (False, "too certain")
    assert gate(group(1.1, 0.1, raw={"acc": [1, 1]})).keep is False  # the outcome counts, not the total
    assert gate(group(1, 0, 0, 0)).keep
    with pytest.raises(ConfigError, match="min_variance"):
        VcrlVarianceFilter(min_variance=0.0)


def bank(**fields):
    made = Vcrl(**fields)
    made.setup(run(rows={"main": ROWS}, source_weights={}, seed=1))
    return made


def test_the_bank_by_hand():
    made = bank(min_variance=0.5, momentum=0.5)
    first = [row.id for row in made(4)]
    a, b, c, d = first
    half, quarter, none = (1, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0)
    end_step(
        made,
        [group(*half, name=a), group(*quarter, name=b), group(*none, name=c), group(*half, name="stranger")],
    )
    assert {key: entry["p"] for key, entry in made.state.bank.items()} == {a: 1.0, b: 0.75}
    fresh = [row.id for row in made(4)]
    assert not set(fresh) & set(first)  # a step begins with new rows
    assert [row.id for row in made(1)] == [a] and next(
        row.id for row in made(2)
    ) == b  # refills: by priority, then new rows
    again = bank(min_variance=0.5, momentum=0.5)
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert again.state_dict() == made.state_dict()
    end_step(made, [group(*none, name=a), group(*none, name=b), group(*half, name=fresh[0])])
    # a: 0.5 * 1 + 0.5 * 0 = 0.5 stays; b: 0.375 leaves
    assert {key: entry["p"] for key, entry in made.state.bank.items()} == {a: 0.5, fresh[0]: 1.0}
    assert d not in made.state.bank and made.metrics()["data/bank"] == 2.0


def test_the_bank_has_room_for_so_many():
    made = bank(max_rows=1)
    rows = [row.id for row in made(3)]
    end_step(
        made,
        [group(1, 0, 0, 0, name=rows[0]), group(1, 1, 0, 0, name=rows[1]), group(1, 0, 0, 0, name=rows[2])],
    )
    assert list(made.state.bank) == [rows[1]]
    with pytest.raises(ConfigError, match="momentum"):
        Vcrl(momentum=1.0)


@pytest.mark.parametrize(("greedy", "keep"), [(1.0, False), (0.0, True), (None, False)])
def test_solved_greedily(greedy, keep):
    given = group(1.0, 0.0)
    if greedy is not None:
        given.untrained = [
            Rollout(
                given.prompt,
                [1],
                reward=1.1,
                outcome=greedy,
                correct=greedy == 1.0,
                source="greedy",
                trained=False,
            )
        ]
    assert Self()(given).keep is keep


def test_self_trains_and_says_what_it_needs():
    metrics = steps(text_run(["methods/self"]), 2)
    assert all(m["groups"] + m.get("group_filter/solved greedily", 0.0) == 4.0 for m in metrics)
    with pytest.raises(
        ConfigError, match="requires 'remax.greedy_baseline'.*rollout: .name: remax.greedy_baseline"
    ):
        text_run(["methods/self"], ["rollout={name: independent}"])
    with pytest.raises(ConfigError, match="no plug-in of this config reads.*name: self"):
        text_run(["methods/self"], ["group_filters=null"])


@pytest.mark.parametrize(
    ("method", "reason"),
    [("vcrl", "group_filter/too certain"), ("balanced_online_difficulty_filtering", "group_filter/too hard")],
)
def test_filters_train(method, reason):
    metrics = steps(text_run([f"methods/{method}"], ["max_refill_rounds=3"]), 3)
    assert sum(m.get(reason, 0.0) for m in metrics) > 0 and all(m["groups"] <= 4 + 3 for m in metrics)
