"""Held-out accuracy during training, and the callback that runs benchmark suites."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.methods.core.prompt_template import Chat
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Callback, Reward
from vlrl.trainer import heldout
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.step.observer import Observers
from vlrl.trainer.step.step import ScoreCounts
from vlrl.types import Rollout, Row


@dataclass(frozen=True)
class Scored(Reward):
    """The score in the row's answer; a broken verifier for the answer "broken"."""

    def __call__(self, rollout):
        if rollout.answer == "broken":
            raise TypeError("the gold answer is no number")
        return float(rollout.answer)


@dataclass(frozen=True)
class ScoredTogether(Scored):
    """The same for a whole group."""

    def score_group(self, group):
        return [self(rollout) for rollout in group]


def fake_run(tmp_path, rewards=None):
    """A small context that evaluation can use."""
    engine = Fake(function=lambda request, index: str(request.prompt.row.answer))
    current = SimpleNamespace(rewards=rewards or {}, outcome={}, prompt_template=Chat())
    current.sampling, current.rollout = Plain(max_tokens=8), SimpleNamespace(play=lambda *_: None)
    current.outcome_slots = partial(PhasePlan.outcome_slots, current)
    policy = SimpleNamespace(
        gather_params=nullcontext, encode=lambda prompt: SimpleNamespace(ids=[0], spaces=())
    )
    run = View(engine=engine, policy=policy, step=4, output=tmp_path, current=current, rewards=rewards or {})
    run.observers, run.events = Observers(), []
    run.event = lambda kind, values: run.events.append((kind, values))
    run.make_rollout = lambda completion: Rollout(completion.request.prompt, completion.ids, completion.text)
    return run


def rows(task, *answers):
    return [Row(f"{task}{i}", "?", answer, task=task) for i, answer in enumerate(answers)]


def test_heldout_accuracy_is_greedy_and_counts_correct_answers(tmp_path, monkeypatch):
    requests = []
    original = Fake.generate
    monkeypatch.setattr(
        Fake, "generate", lambda self, batch: (requests.extend(batch), original(self, batch))[1]
    )
    run = fake_run(tmp_path, {"format": Scored(weight=0.0, correct_at=0.0), "iou": Scored(correct_at=0.5)})
    result = heldout.evaluate(run, {"a": rows("a", "0.6", "0.4", "1", "0"), "b": rows("b", "0.5"), "c": []})
    assert (
        result.accuracy == {"a": 0.5, "b": 1.0} and result.errors == {}
    )  # by `correct_at` of the reward with a weight
    assert result.metrics() == {
        "heldout/a": 0.5,
        "heldout/b": 1.0,
        "heldout_reward/a": pytest.approx(0.5),  # graded: the mean of 0.6, 0.4, 1 and 0
        "heldout_reward/b": 0.5,
    }
    assert not run.warnings
    assert all(
        request.sampling.temperature == 0 and request.n == 1 and request.sampling.max_tokens == 8
        for request in requests
    )


def test_a_reward_of_0_and_1_has_no_mean_beside_its_accuracy(tmp_path):
    run = fake_run(tmp_path, {"right": Scored()})
    assert heldout.evaluate(run, {"a": rows("a", "1", "0")}).metrics() == {"heldout/a": 0.5}


@pytest.mark.parametrize("reward", [Scored, ScoredTogether])
def test_a_failing_verifier_is_left_out_counted_apart_and_told(tmp_path, reward):
    run = fake_run(tmp_path, {"verifier": reward()})
    result = heldout.evaluate(
        run, {"a": rows("a", "1", "broken", "0"), "b": rows("b", *["broken"] * 5), "c": rows("c", "1")}
    )
    assert result.accuracy == {"a": 0.5, "c": 1.0} and result.errors == {"a": 1, "b": 5}
    assert result.metrics() == {
        "heldout/a": 0.5,
        "heldout/c": 1.0,
        "heldout/errors": 6.0,
        "heldout/errors/a": 1.0,
        "heldout/errors/b": 5.0,
    }
    (warning,) = run.warnings  # and it did not stop the run, although `error_limit` is 0
    assert (
        "6 of 9 rows" in warning
        and "row 'a1': reward 'verifier' raised TypeError: the gold answer is no number" in warning
    )
    assert run.score_counts == ScoreCounts()  # what training counts is left alone


def test_a_reward_beside_the_outcome_takes_no_verdict_away(tmp_path):
    """Some rewards need what a rollout strategy adds in training."""

    @dataclass(frozen=True)
    class OfTraining(Reward):
        def __call__(self, rollout):
            raise ValueError("no answer with the long answer as context")

    run = fake_run(tmp_path, {"verifier": Scored(), "proxy": OfTraining()})
    result = heldout.evaluate(run, {"a": rows("a", "1", "0", "broken")})
    assert (result.accuracy, result.errors) == ({"a": 0.5}, {"a": 1}) and "verifier" in run.warnings[0]


def test_rows_that_no_reward_scores_are_errors_too(tmp_path):
    run = fake_run(tmp_path, {"verifier": Scored(tasks=("a",))})
    result = heldout.evaluate(run, {"a": rows("a", "1"), "b": rows("b", "1")})
    assert (result.accuracy, result.errors) == (
        {"a": 1.0},
        {"b": 1},
    ) and "no reward scores its task 'b'" in run.warnings[0]


def test_the_first_answers_of_each_task_are_kept(tmp_path):
    run = fake_run(tmp_path, {"score": Scored()})
    result = heldout.evaluate(run, {"a": rows("a", "1", "0", "broken"), "b": rows("b", "0.5", "1")})
    assert [tuple(answer) for answer in result.first_answers(2)] == [
        ("a", "?", "1", "1", True),
        ("a", "?", "0", "0", False),
        ("b", "?", "0.5", "0.5", False),
        ("b", "?", "1", "1", True),
    ]
    assert (
        result.first_answers(3)[2] == ("a", "?", "broken", "broken", None) and result.first_answers(0) == []
    )


def test_processes_share_the_rows_and_agree(tmp_path):
    rewards = {"verifier": Scored()}
    by_task = {"a": rows("a", "1", "0", "broken", "1"), "b": rows("b", "1", "broken", "0")}
    alone = heldout.evaluate(fake_run(tmp_path, rewards), by_task)
    shares = []
    for rank in (0, 1):
        run = fake_run(tmp_path, rewards)
        run.rank, run.ranks, run.gather = rank, 2, lambda values: (shares.append(values), values)[1]
        heldout.evaluate(run, by_task)
    assert [len(share) for share in shares] == [4, 3]
    everyone = [share[i] for i in range(4) for share in shares if i < len(share)]
    told = []
    for rank in (0, 1):
        run = fake_run(tmp_path, rewards)
        run.rank, run.ranks, run.gather, run.warn = rank, 2, lambda values: everyone, told.append
        assert heldout.evaluate(run, by_task) == alone
    assert len(told) == 1  # by the first process


def test_the_callback_evaluates_every_n_steps_and_goes_on(tmp_path):
    callback = build(
        Callback, {"name": "eval", "suites": ["vsi_bench"], "every": 2, "data": "fixture", "max_tokens": 8}
    )
    run = fake_run(tmp_path)
    callback.check(run)
    run.step = 3
    assert callback(run, []) == {}
    run.step = 4
    metrics = callback(run, [])
    assert (
        metrics["vsi_bench/official"] == 1.0 == metrics["vsi_bench/vlrl"]
        and metrics["vsi_bench/official/low"] < 1
    )
    calls = run.engine.state.calls
    assert callback(run, []) == metrics and run.engine.state.calls == calls  # its journal has everything
    summary = json.loads((tmp_path / "eval" / "step-000004" / "summary.json").read_text())
    assert summary["phase"] == "rl" and {part["profile"] for part in summary["results"]} == {
        "official",
        "vlrl",
    }
    ((kind, told), *_) = run.events
    assert kind == "eval" and told["step"] == 4 and told["scores"]["vsi_bench/official"] == 1.0
    with pytest.raises(ConfigError, match="name at least one suite"):
        build(Callback, {"name": "eval"})
    with pytest.raises(ConfigError, match="Did you mean 'vsi_bench'"):
        build(Callback, {"name": "eval", "suites": ["vsi_bnch"], "data": "fixture"}).check(run)


def test_the_callback_tells_what_failed_on_any_process(tmp_path):
    callback = build(
        Callback, {"name": "eval", "suites": ["vsi_bench"], "every": 1, "data": "fixture", "max_tokens": 8}
    )
    run = fake_run(tmp_path)
    run.gather = lambda values: [*values, 3]  # another process had three failures
    callback(run, [])
    assert len(run.warnings) == 1 and "3 responses failed" in run.warnings[0]
