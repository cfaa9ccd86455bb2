"""Re-Schedule: trees of answers, what choices in them gain, the weights. Numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch
from make import inputs, run
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.papers.re_schedule import KEY, PATH, ReSchedule, full, r_score, ranks
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.step.loop import train_step


def tree(text):
    """Leaves of a binary tree of depth 3 from "1100 1010": groups of four below the root's children."""
    bits = text.replace(" ", "")
    return {(i >> 2, i >> 1 & 1, i & 1): bit == "1" for i, bit in enumerate(bits)}


@pytest.mark.parametrize(
    ("text", "edits", "gain"),
    [
        ("1100 0000", 1, 2 / 6 - 2 / 8),  # the first child keeps its right half: 2 of 6
        ("1100 0011", 1, 4 / 6 - 4 / 8),
        ("1100 0011", 2, 1 - 4 / 8),  # then the other, too
        ("1100 0011", 9, 1 - 4 / 8),  # no more to gain
        ("1010 1010", 5, 0.0),  # only the parents of leaves could choose, and they do not
        ("0000 0000", 5, 0.0),
        ("1111 1111", 5, 0.0),
        (
            "1000 1110",
            1,
            4 / 6 - 4 / 8,
        ),  # the first keeps 1 of 2: 4 of 6; the second would keep 2 of 2: 3 of 6
    ],
)
def test_what_choices_gain(text, edits, gain):
    assert r_score(tree(text), depth=3, edits=edits) == pytest.approx(gain)


def test_an_early_end_stands_for_all_that_follows():
    assert full({(0,): True, (1, 0): False, (1, 1): True}, branch=2, depth=2) == {
        (0, 0): True,
        (0, 1): True,
        (1, 0): False,
        (1, 1): True,
    }


def test_ranks():
    assert ranks({"a": 0.1, "b": 0.3, "c": 0.1, "d": 0.0}) == {"b": 0.0, "a": 0.33, "c": 0.67, "d": 1.0}
    assert ranks({"a": 1.0}) == {"a": 0.0} and ranks({}) == {}


@pytest.mark.parametrize(
    ("mode", "step", "expected"),
    [
        ("linear", 0, [2.0, 0.5, 1.25]),  # q0 has the higher score, q2 none
        ("linear", 5, [1.25, 1.25, 1.25]),
        ("linear", 10, [0.5, 2.0, 1.25]),
        ("sigmoid", 5, [1.25, 1.25, 1.25]),
        ("sigmoid", 10, [0.5 + 1.5 * (1 - 1 / (1 + math.exp(-5))), 0.5 + 1.5 / (1 + math.exp(-5)), 1.25]),
        ("sigmoid", 99, [0.5 + 1.5 * (1 - 1 / (1 + math.exp(-5))), 0.5 + 1.5 / (1 + math.exp(-5)), 1.25]),
    ],
)
def test_weights(mode, step, expected):
    weight = ReSchedule(mode=mode)
    weight.setup(run(history={"q0": {KEY: 0.4}, "q1": {KEY: 0.1}}, phase_step=step, settings=run(steps=10)))
    assert weight(inputs([[-1.0]] * 3, group_of=[0, 1, 2]))[:, 0].tolist() == pytest.approx(expected)


def test_no_scores_is_said():
    said = []
    ReSchedule().setup(run(warn=said.append, phase_step=0, settings=run(steps=1)))
    assert "all prompts have the same weight" in said[0]
    with pytest.raises(ConfigError, match="low"):
        ReSchedule(low=3.0)


SMALL = [
    "data.train.arithmetic.count=4",
    "phases.rl.group_size=8",
    "phases.rl.rollout={branch: 2, depth: 3, interval: 2}",
]


def test_trees_grow_by_requests_and_their_scores_are_used():
    made = text_run(["methods/re_schedule"], SMALL, engine="hf")
    before = [p.detach().clone() for p in made.policy.model.parameters()]
    train_step(made)
    assert all(torch.equal(a, b) for a, b in zip(before, made.policy.model.parameters()))  # it only measures
    for group in last_step(made).groups:
        paths = [tuple(PATH[rollout]) for rollout in group]
        assert len(set(paths)) == len(paths) and set(full(dict.fromkeys(paths, True), 2, 3)) == set(
            tree("0" * 8)
        )
        for a in group:
            for b in group:
                shared = next((i for i, (x, y) in enumerate(zip(PATH[a], PATH[b])) if x != y), 0)
                assert (
                    a.ids[: 2 * shared] == b.ids[: 2 * shared]
                    and a.logp[: 2 * shared] == b.logp[: 2 * shared]
                )
    assert sum(KEY in memory for memory in made.history.values()) == 4
    made.phase_step = 0
    made.enter(1)
    assert len(made.objective.token_weights["schedule"].state.ranks) == 4
    assert steps(made, 1)[0]["groups"] == 4


def test_a_tree_needs_its_group_size():
    with pytest.raises(ConfigError, match="set group_size: 8"):
        text_run(["methods/re_schedule"], [*SMALL, "phases.rl.group_size=4"])
