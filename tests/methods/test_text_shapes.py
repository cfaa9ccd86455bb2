"""Shapes for text: lengths, loops, preferences, noisy verdicts, curiosity, diversity. Numbers by hand."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
from make import group, run

from vlrl.methods.core.advantage import GRPO, Reinforce
from vlrl.methods.papers.campo import Campo, common_prefixes, loop_start
from vlrl.methods.papers.cde import Cde, mean_surprisal
from vlrl.methods.papers.diver import Diver
from vlrl.methods.papers.efficiencysteering_ser_rl import EfficiencysteeringSerRl
from vlrl.methods.papers.grpo_lambda import GRPOLambda, sigmoid_of_length
from vlrl.methods.papers.laser_2 import Laser2, band_of, estimated_target, repetitive
from vlrl.methods.papers.noisy_verifier_corrections import NoisyVerifierCorrections
from vlrl.methods.papers.par import Par
from vlrl.plugins.registry import ConfigError


def on(shape, step=0, weight=1.0, **parts):
    """The shape, set up in a run with one reward "a"."""
    rewards = {"a": SimpleNamespace(weight=weight, correct_at=1.0), **parts.pop("rewards", {})}
    made = run(rewards=rewards, phase_step=step, **parts)
    shape.setup(made)
    return shape, made


def scored(*rewards, **fields):
    return group(*rewards, raw={"a": list(rewards)}, **fields)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("reward", [1.5, 1.5, 1.0, 0.0, 0.0]),
        ("penalty", [1.0, 1.0, 0.5, 0.0, 0.0]),
        ("hybrid", [1.5, 1.5, 0.5, 0.0, 0.0]),
    ],
)
def test_length_step(form, expected):
    shape, _ = on(Laser2(form=form))  # half of 16 tokens
    assert shape(scored(1.0, 1.0, 1.0, 0.0, 0.0, lengths=[3, 8, 9, 3, 12])) == expected
    assert (
        on(Laser2(form=form, target=8))[0](scored(1.0, 1.0, 1.0, 0.0, 0.0, lengths=[3, 8, 9, 3, 12]))
        == expected
    )


def test_wrong_ones_may_explore():
    shape, _ = on(Laser2(explore=True))
    g = scored(1.0, 0.0, 0.0, 0.0, 0.0, lengths=[3, 3, 12, 12, 12])
    g.rollouts[3].ids, g.rollouts[4].finish = [1, 2, 3] * 4, "length"
    assert shape(g) == [1.5, 0.0, 0.5, 0.0, 0.0]  # short, long, a loop, cut off


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2] * 6, True),
        (list(range(40)), False),
        ([1] * 8, False),
        ([*range(20), 0, 1, *range(30, 38)], False),
    ],
)
def test_what_repeats(ids, expected):
    assert repetitive(ids) is expected


@pytest.mark.parametrize(
    ("share", "band"),
    [(0.0, "low"), (0.3, "low"), (1 / 3, "medium"), (0.6, "medium"), (2 / 3, "high"), (1.0, "high")],
)
def test_bands(share, band):
    assert band_of(share) == band


@pytest.mark.parametrize(
    ("lengths", "surely_correct", "expected"),
    [
        ([2, 4, 6, 8], 4, 4),
        ([2, 4, 6, 8], 2, 4),
        ([2, 4, 6, 8], 1, 8),
        ([6, 6, 8, 8], 4, 6),
        ([9, 9], 4, 16),
        ([], 4, 16),
    ],
)
def test_targets(lengths, surely_correct, expected):
    """4: a quarter of the lengths up to t is one correct rollout of four; t = 4 is the smallest threshold."""
    assert estimated_target(lengths, [4, 6, 8], surely_correct, 16) == expected


def test_targets_follow_the_difficulty():
    shape, made = on(
        Laser2(every=2, target=1, lower=0.25, interval=0.125), group_size=6
    )  # thresholds 4, 6, ... 16
    easy, hard = (
        scored(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, lengths=[4, 5, 6, 7, 8, 9]),
        scored(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, lengths=[4, 5, 6, 7, 8, 9]),
    )
    assert shape(easy) == [1.5] * 6 and shape(hard)[0] == 1.5
    shape.end_step(made)
    # of 6 at least 4 are right in an easy group: floor(t's share * 4) reaches 1 at 2 of 6 rollouts, 4 and 5
    # long; a hard one is sure of 1 only
    expected = {"target_length/low": 10.0, "target_length/medium": 16.0, "target_length/high": 6.0}
    assert shape.metrics() == expected == shape.metrics()
    assert shape(easy) == [1.5, 1.5, 1.5, 1.0, 1.0, 1.0] and shape(hard)[0] == 1.5
    again, _ = on(Laser2(every=2, target=1, lower=0.25, interval=0.125), step=2)
    again.load_state_dict(shape.state_dict())
    assert again(easy) == [1.5, 1.5, 1.5, 1.0, 1.0, 1.0]
    made.phase_step = 1  # every second step: of the same rollouts once more
    shape.end_step(made)
    assert shape.metrics() == expected
    shape(scored(*[1.0] * 6, lengths=[16] * 6))
    made.phase_step = 2
    shape.end_step(made)
    assert shape.metrics() == expected  # the third is not due
    made.phase_step = 3
    shape.end_step(made)
    assert shape.metrics() == dict.fromkeys(expected, 16.0)


def test_only_solved_prompts_pay_for_length():
    """Two right rollouts of 2 and 4 tokens: mean 3, std sqrt 2, sigma(-+ 0.7071) = 0.330 and 0.670."""
    low, high = 1 / (1 + math.exp(math.sqrt(0.5))), 1 / (1 + math.exp(-math.sqrt(0.5)))
    assert sigmoid_of_length(group(1, 1, lengths=[2, 4]).rollouts) == pytest.approx([low, high])
    solved, half, never = (
        group(1, 1, lengths=[2, 4]),
        group(1, 0, lengths=[2, 4]),
        group(0, 0, lengths=[2, 4]),
    )
    plain = GRPOLambda(share=0.0, scale="none")([solved, half, never])
    assert plain == [[0, 0], [0.5, -0.5], [0, 0]]
    third = GRPOLambda(share=1 / 3, alpha=0.2, scale="none")([solved, half, never])
    gap = 0.2 * (high - low) / 2
    assert third[0] == pytest.approx([gap, -gap]) and third[1:] == plain[1:]
    everyone = GRPOLambda(share=1.0, alpha=0.2, scale="none")([solved, half, never])
    assert everyone[1] == pytest.approx([0.45, -0.45]) and everyone[2] == [
        0,
        0,
    ]  # a lone right rollout: 1 - 0.2 / 2
    assert solved.rewards == [1, 1]


def test_own_shortest():
    shape, _ = on(EfficiencysteeringSerRl(weight=0.4))
    # three of four are right: 0.3 times 0, 1/2 and at most 1
    assert shape(scored(1.0, 1.0, 1.0, 0.0, lengths=[4, 6, 20, 2])) == pytest.approx([1.0, 0.85, 0.7, 0.0])
    assert shape(scored(0.0, 0.0, lengths=[4, 6])) == [0.0, 0.0] and shape(
        scored(1.0, 0.0, lengths=[9, 1])
    ) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("ids", "start"),
    [
        ("abcabc", 0),
        ("xyabab", 2),
        ("xyababa", 3),
        ("xabcabcabc", 1),
        ("abcd", None),
        ("aab", None),
        ("xaa", 1),
        ("", None),
        ("abxabyab", None),
    ],
)
def test_where_a_loop_begins(ids, start):
    assert loop_start([ord(c) for c in ids]) == start


def test_prefixes_against_the_definition():
    draw = random.Random(0)
    for _ in range(50):
        ids = [draw.randint(0, 1) for _ in range(draw.randint(1, 30))]
        plain = [0] + [
            next((k for k in range(len(ids) - i) if ids[k] != ids[i + k]), len(ids) - i)
            for i in range(1, len(ids))
        ]
        assert common_prefixes(ids) == plain


def test_loops_cost_only_the_truncated():
    g = group(1.0, 1.0, 0.0, 0.0, finish=["stop", "length", "length", "length"])
    for rollout, text in zip(g, ("abab", "xyabab", "abab", "abcd")):
        rollout.ids = [ord(c) for c in text]
    assert Campo()(g) == pytest.approx([1.0, 1 - 4 / 6, -1.0, 0.0])
    assert Campo(penalty=0.1, dynamic=False)(g) == pytest.approx([1.0, 0.9, -0.1, 0.0])
    with pytest.raises(ValueError, match="min_repeats"):
        Campo(min_repeats=1)


@pytest.mark.parametrize(
    ("form", "k", "references", "expected"),
    [
        ("sigmoid", 1.0, 1.0, [1 / (1 + math.e**-2), 0.5]),
        ("sigmoid", 2.0, [1.0, 3.0], [(1 / (1 + math.e**-4) + 0.5) / 2, (0.5 + 1 / (1 + math.e**4)) / 2]),
        ("tanh", 1.0, 1.0, [math.tanh(2.0), 0.0]),
        ("centred", 1.0, 1.0, [2.0, 0.0]),
    ],
)
def test_preference(form, k, references, expected):
    shape, _ = on(Par(form=form, k=k), weight=2.0)
    g = group(6.0, 2.0, raw={"a": [3.0, 1.0]})
    object.__setattr__(g.row, "meta", {"reference_rewards": references})
    assert shape(g) == pytest.approx(
        [2 * value for value in expected]
    )  # twice the weight, and nothing else in the total


def test_preference_scores_the_demonstration():
    class Length:
        weight = 1.0

        def __call__(self, rollout):
            return float(len(rollout.text))

    shape = Par(slot="a")
    shape.setup(run(rewards={"a": Length()}))
    g = group(3.0, 1.0, raw={"a": [3.0, 1.0]})
    with pytest.raises(ValueError, match="reference_rewards"):
        shape(g)
    object.__setattr__(g.row, "target", "abc")
    assert shape(g) == pytest.approx([0.5, 1 / (1 + math.e**2)])


def test_noisy_verdicts_are_put_right_on_average():
    backward, _ = on(NoisyVerifierCorrections(rho0=0.1, rho1=0.3), weight=2.0)
    g = group(2.5, 0.5, raw={"a": [1.0, 0.0]})  # 0.5 from another slot
    assert backward(g) == pytest.approx([0.5 + 2 * 0.9 / 0.6, 0.5 - 2 * 0.1 / 0.6])
    right, wrong = 0.7 * 1.5 + 0.3 * (-1 / 6), 0.1 * 1.5 + 0.9 * (-1 / 6)
    assert (right, wrong) == (pytest.approx(1.0), pytest.approx(0.0))
    forward, _ = on(NoisyVerifierCorrections(mode="forward", rho1=0.3))
    assert forward(scored(1.0, 0.0)) == pytest.approx([0.3, -0.7])
    object.__setattr__(g.row, "meta", {"noise": (0.0, 0.5)})
    assert backward(g) == pytest.approx([0.5 + 2 * 2.0, 0.5])


def test_the_appeal_tells_how_often_right_answers_are_refused():
    better = {"better": SimpleNamespace(weight=0.0, correct=lambda rollout, score: score >= 1)}
    shape, made = on(NoisyVerifierCorrections(rho1=0.2, appeal="better", decay=0.5), rewards=better)
    shape.end_step(made)
    assert shape.metrics() == {"noisy_verifier/rho1": 0.2}
    shape(group(1, 0, 0, 0, raw={"a": [1.0, 0.0, 0.0, 0.0], "better": [1.0, 1.0, 0.0, 0.0]}))
    assert shape.rate == 0.2
    shape.end_step(made)
    assert shape.metrics() == {"noisy_verifier/rho1": 0.5} == shape.metrics()
    shape(group(1, 1, 0, 0, raw={"a": [1.0, 1.0, 0.0, 0.0], "better": [1.0, 1.0, 0.0, 0.0]}))
    shape.end_step(made)
    assert shape.rate == pytest.approx(0.5 / 3)  # overturned 0.5, confirmed 0.5 + 2
    again, _ = on(NoisyVerifierCorrections(appeal="better"), rewards=better)
    again.load_state_dict(shape.state_dict())
    assert again.rate == shape.rate


def test_what_noise_cannot_be_put_right():
    with pytest.raises(ValueError, match="rho0"):
        NoisyVerifierCorrections(rho0=0.5, rho1=0.5)
    with pytest.raises(ValueError, match="corrects verdicts of 0 or 1"):
        on(NoisyVerifierCorrections())[0](scored(0.5))
    shape, made = on(NoisyVerifierCorrections(), advantage=GRPO(scale="group"))
    with pytest.raises(ConfigError, match="divides by the std of rewards, so the correction"):
        shape.check(made)
    for advantage in (
        GRPO(scale="none"),
        Reinforce(decay=0.9),
    ):  # a mean removes what the forward correction adds
        shape, made = on(NoisyVerifierCorrections(mode="forward"), advantage=advantage)
        with pytest.raises(ConfigError, match="subtracts a mean"):
            shape.check(made)
    shape, made = on(NoisyVerifierCorrections(mode="forward"), advantage=Reinforce(decay=0.0))
    assert shape.check(made) is None


def test_curiosity_is_capped_by_the_reward():
    g = group(1.0, 0.0, 0.5, 1.0, lengths=[2, 2, 2, 2])
    for rollout, logp in zip(g, (-0.1, -2.0, -2.0, -2.0)):
        rollout.signals["old_logp"] = [logp, logp]
    g.rollouts[3].loss_mask = [True, False]
    assert mean_surprisal(g.rollouts[0]) == pytest.approx(0.1)
    # half of B, at most |r - 1/2| / 3 = 1/6
    assert on(Cde())[0](g) == pytest.approx([1.05, 1 / 6, 0.5, 1 + 1 / 6])
    assert on(Cde(zero=0.0, alpha=1.0))[0](g) == pytest.approx([1.1, 0.0, 0.5 + 0.5 / 3, 1 + 1 / 3])


@pytest.mark.parametrize(
    ("step", "omega"), [(0, 1.0), (59, 1.0), (60, 0.8), (299, 0.2), (300, 0.0), (900, 0.0)]
)
def test_curiosity_falls_by_stairs(step, omega):
    assert Cde().weight(step) == pytest.approx(omega)
    assert Cde(horizon=0, omega=0.3).weight(step) == 0.3


@pytest.mark.parametrize(("step", "factor"), [(0, 1.0), (50, 0.5), (100, 0.0), (200, 0.0)])
def test_diversity_pays_right_answers_for_a_while(step, factor):
    shape, _ = on(Diver(diversity="odd", weight=0.1, cap=0.4), step=step)
    g = group(1.0, 1.0, 0.0, raw={"a": [1.0, 1.0, 0.0], "odd": [0.2, 0.9, 0.9]})
    assert shape(g) == pytest.approx([1 + 0.02 * factor, 1 + 0.04 * factor, 0.0])
    with pytest.raises(ConfigError, match="odd"):
        shape.check(run(rewards={"a": None}))
