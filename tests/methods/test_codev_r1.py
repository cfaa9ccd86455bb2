"""Adaptive DAPO's draws by hand, and in a run: as many groups as before, in fewer rounds."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from make import end_step, group, run
from tiny import steps, text_run

from vlrl.methods.papers.codev_r1 import CodevR1, CodevR1FullBatch, differs
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

ROWS = [Row(f"r{i}", f"q{i}") for i in range(64)]
PAID = {"exact": SimpleNamespace(weight=1.0)}
MIXED, SOLVED = (1.0, 0.0), (1.0, 1.0)


def sampler(**fields):
    made = CodevR1(**fields)
    made.setup(run(rows={"main": ROWS}, source_weights={}, seed=1))
    return made


def test_the_draws_by_hand():
    made = sampler()
    assert len(made(8)) == 8
    assert len(made(6)) == 24  # 2 of 8 were kept: 6 / (2 / 8)
    assert len(made(1)) == 5  # 5 of 24: min(2/8, 5/24), 1 * 24 / 5 rounded up
    end_step(made, [group(*MIXED)] * 9 + [group(*SOLVED)] * 28)
    assert made.state.share == pytest.approx(9 / 37)  # of 8 + 24 + 5 rows
    assert made.metrics()["data/draws"] == 3.0 and made.metrics()["data/kept_share"] == pytest.approx(9 / 37)
    again = sampler()
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert [row.id for row in again(8)] == [row.id for row in made(8)]
    assert made.state.last == 33  # 8 * 37 / 9; the part of the step before is forgotten
    end_step(made, [group(*MIXED)] * 33)
    assert made.state.share == pytest.approx(9 / 37)  # the smallest so far, as the release


def test_a_draw_of_which_nothing_is_kept_is_bounded():
    made = sampler(most=4)
    assert [len(made(2)), len(made(2))] == [2, 4]  # counted as one of two
    assert len(made(2)) == 8  # 1 of 4
    assert len(made(2)) == 8  # 1 of 8 asks for 16; most 4 a group
    end_step(made, [group(*SOLVED)] * 22)
    assert made.state.share == pytest.approx(1 / 22)
    assert len(sampler(most=1)(5)) == 5
    with pytest.raises(ConfigError, match="most"):
        CodevR1(most=0)


def test_what_differs():
    assert [differs(group(*rewards)) for rewards in (MIXED, SOLVED, (0.0, 0.0), (0.2, 0.4))] == [1, 0, 0, 1]


def test_a_full_batch_by_rank():
    kept = []
    for rank in (0, 1):
        made = CodevR1FullBatch()
        made.setup(run(rewards=PAID, ranks=2, rank=rank, settings=SimpleNamespace(prompts_per_step=3)))
        kept.append([made(group(*rewards)).keep for rewards in (SOLVED, MIXED, MIXED, MIXED)])
        assert made(group(*MIXED)).reason == "the batch is full"
        end_step(made, [])
        assert made(group(*MIXED)).keep
    assert kept == [[False, True, True, False], [False, True, False, False]]


def test_a_run_fills_its_batch_in_fewer_rounds():
    adaptive = [
        "group_filters={mixed: {name: codev_r1.full_batch}}",
        "max_refill_rounds=99",
        "engine={name: scripted, skill: 0.1, spread: 1.0}",
    ]
    found = {
        most: steps(
            text_run(["methods/grpo"], [*adaptive, f"prompt_sampler={{name: codev_r1, most: {most}}}"]), 6
        )
        for most in (1, 16)
    }
    for metrics in found.values():
        assert {m["groups"] for m in metrics} == {found[1][0]["groups"]}  # full, and no more
    one, many = (sum(m["data/draws"] for m in found[most]) for most in (1, 16))
    assert many < one, (many, one)


def test_a_loop_that_draws_ahead_is_refused():
    with pytest.raises(ConfigError, match="synchronous"):
        text_run(["methods/grpo"], ["prompt_sampler={name: codev_r1}", "loop=one_step_off"])
