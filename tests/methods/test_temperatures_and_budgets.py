"""Temperatures by position and by prompt, budgets by capability, resampling and stages: numbers by hand."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from make import end_step, group, run
from rounds_kit import letters, prepared, prompt
from tiny import steps, text_run

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.papers.ar3po import Ar3po
from vlrl.methods.papers.coba_rl import CobaRl, gain, greedy, proportional, saturation
from vlrl.methods.papers.dars import Dars
from vlrl.methods.papers.ead import Ead, annealing
from vlrl.methods.papers.erpo import Erpo, ErpoReactivated
from vlrl.plugins.registry import ConfigError
from vlrl.types import Sampling

ASK = prompt()


@pytest.mark.parametrize(
    ("t", "value"),
    [
        (9, 1.0),  # before `warm`: the base temperature
        (10, 1.18),  # 2.2 - e^(10/600) = 1.18319
        (100, 1.02),  # 2.2 - e^(1/6) = 1.01864
        (300, 0.55),  # 2.2 - e^0.5 = 0.55128
        (445, 0.1),  # 2.2 - e^0.74167 = 0.0995, held at the end
        (3000, 0.1),
    ],
)
def test_annealing_by_hand(t, value):
    """Step 1 of the released script: d = 25 + 5, times 20 tokens."""
    sampling = Ead(max_tokens=4000)
    assert sampling.span == 600 and sampling(ASK, 0).temperature_at(t) == value


def test_annealing_slows_and_survives_a_long_answer():
    sampling = Ead(max_tokens=64, warm=0, decay=1, grow=2, max_decay=4, unit=1)
    parts = run(phase_step=0, settings=SimpleNamespace(steps=9))
    sampling.setup(parts)
    assert sampling.span == 3
    parts.phase_step = 1
    assert sampling.span == 4 == sampling.metrics()["ead/span"]  # not 5
    assert sampling(ASK, 0).temperature_at(0) == 1.2 and sampling(ASK, 3) == sampling(ASK, 0)
    assert annealing(1.2, 0.1, 1e-3, 0, 1.0, 10) == ((0, 1.2), (1, 0.1))  # e^1000 is not asked for
    for broken in ({"end": 2.0}, {"decay": 0}, {"temperature": 0}):
        with pytest.raises(ValueError, match="temperature|start|above 0"):
            Ead(**broken)


def test_residual_prompts_have_a_higher_temperature():
    sampling, parts = Erpo(rise=0.2, max_temperature=1.5), run()
    assert sampling(prompt("a"), 0).temperature == 1.0
    sampling.setup(parts)
    for expected in (1.0, 1.2, 1.4, 1.5):
        assert (
            sampling(prompt("a"), 0).temperature == pytest.approx(expected)
            and sampling(prompt("b"), 0).temperature == 1.0
        )
        end_step(
            sampling, [group(1, 1, name="a"), group(1, 0, name="b"), group(1, name="c", source=["expert"])]
        )
        assert sampling.metrics()["erpo/residual"] == (1.0, 2.0)
    assert (
        parts.history == {"a": {"erpo": 4}, "b": {"erpo": 0}}
        and json.loads(json.dumps(parts.history)) == parts.history
    )
    end_step(sampling, [group(1, 0, name="a")])
    assert sampling(prompt("a"), 0).temperature == 1.0
    assert sampling.metrics()["erpo/residual"] == (0.0, 1.0) == sampling.metrics()["erpo/residual"]
    with pytest.raises(ValueError, match="max_temperature"):
        Erpo(temperature=2.0)


def test_the_gain_of_a_rollout_by_hand():
    """p = 1/2, tau 5, alpha 3, kappa 7: speed 0.05, density 0.5^2 0.5^3; V(1) - V(0) = 1 - e^-0.05, V(3) -
    V(2) = e^-0.1 - e^-0.15."""
    density = 0.5**5
    assert gain(0, 0.5, 5, 3, 7) == pytest.approx(density * (1 - math.exp(-0.05)))
    assert gain(2, 0.5, 5, 3, 7) == pytest.approx(density * (math.exp(-0.1) - math.exp(-0.15)))
    assert saturation([0.5, 0.5]) == 3 and saturation([0.01, 0.99]) == pytest.approx(
        12
    )  # variance 0.2401 is above 0.1667
    assert saturation([0.25, 0.75]) == pytest.approx(3 + 9 * 0.0625 / 0.1667)


def test_dealing():
    counts = [2, 2, 2]
    assert greedy(counts, [0, 1], [0.5, 0.5, 0.5], 5, 3.0, 7.0, 5) == 5 and counts == [
        5,
        4,
        2,
    ]  # in turn, the first begins
    counts = [2, 2]
    assert greedy(counts, [0, 1], [0.9, 0.1], 4, 6.0, 7.0, 9) == 4 and counts == [
        6,
        2,
    ]  # p^5 prefers the easy one by far
    counts = [0, 0, 0]
    assert proportional(counts, [0, 1], [0.0, 0.5, 0.9], 8, 5) == 8 and counts == [
        5,
        3,
        0,
    ]  # 16/3 is held at 5; a third of the 3 that are left is 1, and the rest goes to the one with room
    counts = [0, 0, 0]
    assert proportional(counts, [0, 1, 2], [0.0, 0.5, 0.5], 10, 9) == 10 and counts == [6, 2, 2]
    # budget_allocators.py, _allocate_remaining_weighted @ aa6b834a: weights 1 - 1e-6, 0.5, 0.5, so 4 of 10, a
    # quarter of 6 is 1, of 5 is 1; of the last 4 each gets one and the first one more
    counts = [4, 0]
    assert proportional(counts, [0, 1], [0.0, 0.999999], 9, 5) == 6 and counts == [5, 5]
    # the first is full, so 3 of 9 are for the next class
    assert proportional([5, 5], [0, 1], [0.0, 0.5], 8, 5) == 0 and proportional([], [], [], 3, 5) == 0


def budget(**fields):
    return prepared(CobaRl(**{"low": 1, "high": 16, **fields}), run())


def test_preference_moves_with_failure():
    made = budget()
    assert made.alpha == 9  # before anything is known: kappa - 2
    end_step(made, [group(1, 0, 0, 0, name="a"), group(0, 0, name="b")])  # F = 1 - 0.125
    assert made.alpha == pytest.approx(1 + 9 * 0.875)
    end_step(made, [group(1, 1, 1, 0, name="a")])  # window 1: F = 0.25, bent to sigmoid(-2.5) = 0.0759
    assert made.alpha == pytest.approx(1 + 9 / (1 + math.exp(2.5)))
    again = budget()
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert again.alpha == made.alpha


def test_rollouts_go_where_they_teach():
    made = budget()
    prompts = [prompt(n) for n in "abcd"]
    assert made(prompts, 18) == [5, 5, 4, 4] and made(prompts, 2) == [1, 1, 0, 0] and made([], 8) == []
    end_step(made, [group(0, 0, 0, 0, name="a"), group(1, 0, name="b"), group(1, 1, name="c")])
    counts = made(prompts, 32)
    # 28 are left; b and d (unknown: 0.5) are half of the prompts: 0.8 of 28 = 22 for them, 6 for a; none for
    # c, which is solved
    assert counts == [7, 12, 1, 12] and sum(counts) == 32
    with pytest.raises(ConfigError, match="group_size"):
        made.check(run(group_size=17))
    for broken in ({"low": 20}, {"kappa": 2}, {"window": 0}):
        with pytest.raises(ValueError, match="needed"):
            budget(**broken)


def test_residual_groups_keep_a_signal():
    """Rewards 1, 1, 1 and a pseudo 0: mean 0.75, std 0.5, so A = 0.5; a mixed group and a wrong one are
    GRPO's."""
    residual, mixed, wrong = group(1, 1, 1), group(1, 0), group(0, 0)
    made = ErpoReactivated(eps=0.0)([residual, mixed, wrong])
    assert made[0] == pytest.approx([0.5] * 3) and made[1:] == GRPO(eps=0.0)([mixed, wrong])
    assert ErpoReactivated(scale="none")([group(1.0, 1.1)])[0] == pytest.approx(
        [0.3, 0.4]
    )  # mean of 1, 1.1, 0 is 0.7
    run = text_run(
        ["methods/erpo"],
        ["group_size=4", "num_minibatches=1", "engine.options=['<answer>{answer}</answer>']"],
    )
    assert steps(run, 2)[0]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("options", "totals"),
    [
        (
            {},
            [32, 19, 11, 9, 8, 8],
            # the release's schedule_ET, n_max 32: 2.25 / 0.21875 = 10.3, 1 / 0.375 = 2.7, 0.25 / 0.46875 =
            # 0.5,
            # rounded up
        ),
        (
            {"schedule": "hardness", "max_total": 64},
            [64, 32, 16, 11, 8, 8],
        ),  # schedule_HW: 5.25 / 0.21875 = 24, 3 / 0.375 = 8, 1.25 / 0.46875 = 2.7
        (
            {"std": True, "max_total": 99},
            [17, 13, 10, 9, 8, 8],
        ),  # 8 / (2 sqrt(a (1 - a))): 16.5, 12.1, 9.2, 8.3
    ],
)
def test_released_totals(options, totals):
    strategy = Dars(**options)
    assert [8 + strategy.further(share, 8) for share in (0.0, 0.125, 0.25, 0.375, 0.5, 1.0)] == totals
    assert Dars(max_total=6).further(0.0, 8) == 0


def test_hard_prompts_are_sampled_again():
    """a: the first right one comes with the fifth attempt; b: right at once; c: count 0."""
    tried = {"a": 0, "b": 0}

    def speak(request, index):
        tried[request.prompt.row.id] += 1
        return "!" if request.prompt.row.id == "b" or tried["a"] > 4 else "?"

    parts = letters(speak)
    strategy = Dars(max_total=6)
    a, b, c = strategy([prompt(n) for n in "abc"], [4, 2, 0], parts)
    assert (
        [len(g) for g in (a, b, c)] == [6, 2, 0]
        and a.rewards == [0, 0, 0, 0, 1, 1]
        and [x[3] for x in parts.asked if x[3]] == [4, 2, 2]
    )
    end_step(strategy, [])
    assert strategy.metrics() == {"dars/added_rollouts": (2.0, 0.0), "dars/solved_by_added": (1.0, 0.0)}
    end_step(strategy, [])
    assert strategy.metrics() == {"dars/added_rollouts": (0.0, 0.0), "dars/solved_by_added": (0.0, 0.0)}
    for broken in ({"schedule": "even"}, {"max_total": 0}):
        with pytest.raises(ValueError, match="max_total"):
            Dars(**broken)


def test_stages_end_with_the_first_correct_one():
    tried = []

    def speak(request, index):
        tried.append(request.prompt.row.id)
        return "!" if request.prompt.row.id == "b" or len(tried) == 8 else "?"

    strategy = prepared(Ar3po(stages=3), parts := letters(speak))
    a, b = strategy([prompt("a"), prompt("b")], [7, 4], parts)  # a in parts of 3, 2, 2; b of 2, 1, 1
    assert len(b) == 2 and len(a) == 7 and sum(a.rewards) == 1
    end_step(strategy, [])
    assert strategy.metrics() == {"ar3po/reused": (0.0, 0.0), "ar3po/skipped": (2.0, 0.0)}


@pytest.mark.parametrize("learn", [False, True])
def test_an_earlier_success_stands_in(learn):
    parts = letters(lambda request, index: "?")
    strategy = prepared(Ar3po(stages=2, keep=2, learn=learn), parts)
    wins = [
        group(1, 0, 1, 1, name="a", texts=["one!", "x", "two!", "three!"]),
        group(1, name="a", texts=["not mine!"], source=["expert"]),
    ]
    end_step(strategy, wins)
    assert [item["text"] for item in parts.history["a"]["ar3po"]] == ["two!", "three!"] and json.loads(
        json.dumps(parts.history)
    ) == parts.history
    a, b = strategy([prompt("a"), prompt("b")], [4, 4], parts)
    stored = a.rollouts[-1]
    assert (
        stored.source == "replay"
        and stored.text in ("two!", "three!")
        and stored.ids == [10, 11, 12]
        and stored.logp == []
    )
    assert (
        stored.loss_mask == (None if learn else [False] * 3)
        and len(a) == len(b) == 4
        and all(r.source == "policy" for r in b)
    )
    assert (
        strategy([prompt("a")], [4], parts)[0].rollouts[-1].text == stored.text
    )  # a function of seed, step and row
    end_step(strategy, [])
    assert strategy.metrics()["ar3po/reused"] == (2.0, 0.0)
    with pytest.raises(ValueError, match="stages"):
        Ar3po(stages=0)


@pytest.mark.parametrize("method", ["ead", "erpo", "coba_rl", "dars", "ar3po"])
def test_presets_take_steps(method):
    run = text_run(
        [f"methods/{method}"],
        ["group_size=6", "data.train.arithmetic.count=8", "num_minibatches=1", "ppo_epochs=1"],
    )
    metrics = steps(run, 2)
    assert (
        metrics[-1]["rollouts"] > 0
        and metrics[-1]["reward/errors"] == 0
        and max(m.get("grad_norm", 0) for m in metrics) > 0
    )
    assert isinstance(run.sampling(ASK, 0), Sampling)
    if method in ("erpo", "coba_rl", "ar3po"):
        assert any(
            method in memory for memory in run.history.values()
        )  # what was sampled is seen by what decides about sampling
