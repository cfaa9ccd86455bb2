"""Thinking that is cut at budgets: where, what is asked, and what each stretch earns. Numbers by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from make import group, run
from tiny import steps, text_run

from vlrl.methods.papers.anytimereasoner import (
    CUTS,
    SUMMARY_OF,
    THOUGHT_LENGTH,
    Anytimereasoner,
    AnytimereasonerBudgetRelative,
    prior_of,
    thought_length,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.types import Completion, Prompt, Rollout, Row, Sampling


class Letters:
    """Characters as tokens."""

    def decode(self, ids):
        return "".join(map(chr, ids))

    def encode(self, text, add_special_tokens=False):
        return list(map(ord, text))


class Engine:
    """Says "abcdefgh" and closes the thought after `thought` letters; continues a prefix with "!"."""

    def __init__(self, thought=8):
        self.text = "abcdefgh"[:thought] + "/" * (thought < 8) + "xy"
        self.asked = []

    def generate(self, requests):
        for request in requests:
            self.asked.append((request.n, "".join(map(chr, request.prefix_ids)), request.sampling.max_tokens))
            for index in range(request.n):
                text = "".join(map(chr, request.prefix_ids)) + "!" if request.prefix_ids else self.text
                ids = list(map(ord, text))
                yield Completion(request, index, ids, [0.0] * len(ids), text, "stop")


def sampled(thought, **fields):
    engine = Engine(thought)
    parts = run(
        engine=engine, seed=0, step=1, phase="rl", sampling=lambda p, a: Sampling(max_tokens=16),
        policy=SimpleNamespace(tokenizer=Letters()),
        make_rollout=lambda c: Rollout(c.request.prompt, list(c.ids), text=c.text, logp=list(c.logp)),
    )  # fmt: skip
    prompt = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))
    (made,) = Anytimereasoner(budgets=2, summaries=3, longest=8, tokens=5, end="/", closing="/", **fields)(
        [prompt], [1], parts
    )
    return made, engine


def test_thoughts_are_cut_and_answered():
    made, engine = sampled(thought=6)  # cut after 4 of 8 and, being over before, after 6
    thought, *answers = made
    assert CUTS[thought] == [4, 6] and THOUGHT_LENGTH[thought] == 6 and thought.source == "policy"
    assert engine.asked[1:] == [(3, "abcd/", 10), (3, "abcdef/", 12)]
    assert [SUMMARY_OF[a] for a in answers] == [(0, 4)] * 3 + [(0, 6)] * 3 and {
        a.source for a in answers
    } == {"summary"}
    assert (
        answers[0].loss_mask == [False] * 5 + [True]
        and answers[0].text == "abcd/!"
        and all(a.trained for a in answers)
    )


def test_a_short_thought_is_answered_once():
    made, engine = sampled(thought=2)
    assert CUTS[made.rollouts[0]] == [2, 2] and engine.asked[1:] == [(3, "ab/", 8)] and len(made) == 4


@pytest.mark.parametrize(("text", "length"), [("abc</think>x", 3), ("</think>x", 0), ("abc", 3), ("", 0)])
def test_how_long_a_thought_is(text, length):
    assert thought_length(list(map(ord, text)), Letters(), "</think>") == length


@pytest.mark.parametrize(
    ("name", "expected"), [("uniform", [1 / 3] * 3), ("linear", [1 / 6, 2 / 6, 3 / 6]), ("base", [0, 0, 1])]
)
def test_priors(name, expected):
    assert prior_of(name, 3) == pytest.approx(expected)


def test_what_a_stretch_earns():
    """Two thoughts, two budgets, half of the prior each. r = (0, 1) and (1, 1): R = (0.5, 0.5) and (1, 0.5).

    First stretch: less the group's mean 0.75. Second: half of W V1 (0.5 * 0, 0.5 * 1) and half of the group's
    mean 0.5.
    """
    values = AnytimereasonerBudgetRelative(prior="uniform").of_thoughts([[0.0, 1.0], [1.0, 1.0]])
    assert values[0] == pytest.approx([-0.25, 0.5 - 0.0 - 0.25]) and values[1] == pytest.approx(
        [0.25, 0.5 - 0.25 - 0.25]
    )
    # three budgets, all at the last: earlier worths weigh 1/2 and 1/4 (lam 1/2), so V1 of the third is (0.25
    # * 0 + 0.5 * 1) / 0.75
    (third,) = AnytimereasonerBudgetRelative(prior="base").of_thoughts([[0.0, 1.0, 1.0]])
    assert third == pytest.approx([0.0, 1 - 0.0 - 2 / 3, 1 - 2 / 3 * (2 / 3) - 1 / 3])
    assert AnytimereasonerBudgetRelative(prior="base").of_thoughts([[0.0], [1.0]]) == [[-0.5], [0.5]]


def test_tokens_and_answers():
    g = group(1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, lengths=[5, 4, 3, 3, 3, 3, 3, 3])
    thoughts, answers = g.rollouts[:2], g.rollouts[2:]
    CUTS.set(thoughts[0], [2, 4])
    CUTS.set(thoughts[1], [2, 2])
    for rollout, where in zip(answers, [(0, 2), (0, 2), (0, 4), (0, 4), (1, 2), (1, 2)]):
        SUMMARY_OF.set(rollout, where)
    assert AnytimereasonerBudgetRelative(prior="uniform")([g]) == [[0.5, -0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0]]
    # r = (0.5, 1) and (1, 1): R = (0.75, 0.5), (1, 0.5); V = 0.875; then 0.5 * 0.5 * r_1 + 0.25
    assert TOKEN_ADVANTAGES[thoughts[0]] == pytest.approx([-0.125, -0.125, 0.125, 0.125, 0.5])
    assert TOKEN_ADVANTAGES[thoughts[1]] == pytest.approx([0.125, 0.125, -0.5, -0.5])


def test_what_it_needs():
    with pytest.raises(
        ConfigError, match="requires 'anytimereasoner.cuts'.*set rollout: {name: anytimereasoner}"
    ):
        text_run(["methods/anytimereasoner"], ["rollout={name: independent}"])
    with pytest.raises(ConfigError, match="per_token"):
        text_run(["methods/anytimereasoner"], ["token_credit={name: uniform}"])
    for broken in ({"budgets": 0}, {"summaries": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Anytimereasoner(**broken)


def test_two_steps():
    first, second = steps(text_run(["methods/anytimereasoner"], ["group_size=2", "rollout.longest=4"]), 2)
    assert first["rollouts"] > 2 * 4 and second["reward/errors"] == 0
