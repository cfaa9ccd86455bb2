"""ReGFT, re-distillation and the warm-up: what one phase leaves to the next, and that hints are not trained
on."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from make import group, run
from run_kit import last_step
from tiny import TEXT, opened, steps, text_run

from vlrl.config import load
from vlrl.methods.papers.re_distillation import KEY, ReDistillation, ReDistillationKeepCorrect
from vlrl.methods.papers.regft import Regft
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.types import Prompt, Row


def asked(prompt):
    """The text of a prompt's question."""
    return "".join(item["text"] for item in prompt.messages[-1]["content"])


@pytest.mark.parametrize(("share", "begun"), [(0.5, "abc"), (0.1, "a"), (1.0, "abcde")])
def test_a_hint_is_seen_and_not_trained_on(share, begun):
    prompt = Regft(share=share)(Row("r", "Why?", target="abcde"))
    assert asked(prompt) == f"Why?\nA solution begins: {begun}" and asked(prompt.for_training) == "Why?"
    assert prompt.row.question == "Why?" and prompt.key != prompt.for_training.key


def test_without_a_demonstration_there_is_no_hint():
    prompt = Regft()(Row("r", "Why?"))
    assert asked(prompt) == "Why?" and prompt.train is None
    with pytest.raises(ValueError, match="hint"):
        Regft(hint="{question}")


def keeper(steps=4, step=3, groups=(), **fields):
    """The callback after `step` of `steps`, and the run that it sees."""
    parts = run(phase_step=step, settings=SimpleNamespace(steps=steps))
    made = ReDistillationKeepCorrect(go_back=False, **fields)
    return made(parts, list(groups)), parts.history


def test_the_first_right_rollout_of_late_steps_is_kept():
    groups = [
        group(0, 1, 1, name="a", texts=["x", "first", "second"]),
        group(0, 0, name="b"),
        group(1, name="c", source=["expert"]),
    ]
    said, history = keeper(groups=groups, last=2)
    assert said == {"kept": 1.0} and history == {"a": {KEY: {"ids": [10, 11, 12], "text": "first"}}}
    assert json.loads(json.dumps(history)) == history
    assert keeper(step=1, groups=groups, last=2)[1] == {}  # too early
    assert len(keeper(groups=[group(1, name=n) for n in "abc"], max_rows=2)[1]) == 2


def test_what_was_kept_stands_for_samples():
    prompts = [Prompt(Row(n, n), ()) for n in "ab"]
    parts = run(
        history={"a": {KEY: {"ids": [5], "text": "t"}}}, policy=SimpleNamespace(spaces=lambda prompt: ())
    )
    a, b = ReDistillation()(prompts, [1, 1], parts)
    assert [(r.ids, r.text, r.source) for r in a] == [([5], "t", "kept")] and len(b) == 0


def test_the_policy_goes_back_and_learns_from_its_own_answers():
    made = text_run(
        ["methods/re_distillation"],
        [
            "phases.rl.steps=2",
            "phases.distil.steps=2",
            "data.train.arithmetic.count=4",
            "max_refill_rounds=3",
        ],
    )
    before = {name: p.detach().clone() for name, p in made.policy.model.named_parameters()}
    steps(made, 1)
    assert not all(torch.equal(p, before[name]) for name, p in made.policy.model.named_parameters())
    metrics = steps(made, 1)
    assert (
        all(torch.equal(p, before[name]) for name, p in made.policy.model.named_parameters())
        and metrics[0]["keep/kept"] > 0
    )
    made.use(1)
    made.phase_step = 0
    made.enter(1)
    made.engine.sync(made.policy)
    (learned,) = steps(made, 1)
    assert (
        learned["loss/nll"] > 0
        and learned["grad_norm"] > 0
        and {r.source for g in last_step(made).groups for r in g} == {"kept"}
    )


def test_going_back_needs_whole_weights():
    with pytest.raises(ConfigError, match="adapters"):
        ReDistillationKeepCorrect().setup(run(state_sharded=True, policy=SimpleNamespace(model=None)))


def test_regft_learns_verified_solutions_of_the_plain_question():
    made = text_run(["methods/regft"], ["phases.cold_start.steps=1"])
    (first,) = steps(made, 1)
    assert first["loss/nll"] > 0 and all(
        "begins" in asked(r.prompt) and "begins" not in asked(r.prompt.for_training)
        for g in last_step(made).groups
        for r in g
    )


def test_the_warm_up_is_on_puzzles_and_the_rest_on_a_hundred_rows():
    words = [
        *TEXT,
        "prompts_per_step=2",
        "max_refill_rounds=1",
        "sampling.max_tokens=10",
        "watch.rollouts_every=0",
    ]
    made = opened(
        Session(
            Plan.of(
                load(
                    ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/warm_up_then_rlvr"],
                    words,
                )
            )
        )
    )
    assert list(made.rows) == ["knights"] and steps(made, 1)[0]["loss/nll"] > 0
    made.use(1)
    made.enter(1)
    assert list(made.rows) == ["arithmetic"] and len(made.rows["arithmetic"]) == 100
