"""EAGLET: what a plan is worth to two frozen executors, plans that harm, and the cold start's plans."""

from types import SimpleNamespace

import pytest
from make import group
from run_kit import View, last_step
from tiny import opened, text_run
from vlrl_rewards.combine.executor_gain import (
    UNHARMED,
    ExecutorGain,
    Played,
    gain,
    plan_of,
)

from vlrl.config import load
from vlrl.methods.papers.eaglet import EagletConsensus
from vlrl.plugins.episodes import Action, Episode, Observation
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import train_step
from vlrl.types import Completion


@pytest.mark.parametrize(
    ("planned", "bare", "alpha", "worth"),
    [
        ((1.0, 3), (0.0, 5), 0.1, 1.21),  # 1.1^2
        ((1.0, 5), (0.5, 5), 0.1, 1.0),
        ((1.0, 7), (0.0, 5), 0.1, 1.1**-2),
        ((1.0, 2), (1.0, 9), 0.1, 0.0),  # faster, and no better
        ((0.0, 2), (1.0, 2), 0.1, 0.0),
        ((1.0, 3), (0.0, 5), 0.0, 1.0),
    ],
)
def test_the_gain_by_hand(planned, bare, alpha, worth):
    assert gain(Played(*planned), Played(*bare), alpha) == pytest.approx(worth)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("<think>so</think><plan> go </plan>", "go"),
        ("<plan>first</plan> no, <plan>second</plan>", "second"),
        ("<think><plan>thought</plan></think>", ""),
        ("<plan>cut", ""),
        ("go</plan>", ""),
        ("", ""),
        ("</plan><plan>", ""),
    ],
)
def test_plans_are_read(text, plan):
    assert plan_of(text, "plan") == plan


class Walk(Episode):
    """Three steps forward are paid 1; the way of the words that are no step is free."""

    def __init__(self, log):
        self.place, self.log = 0, log

    def reset(self, row, seed):
        return Observation("You are at 0.")

    def step(self, action: Action):
        self.place += action.text == "forward"
        done = self.place == 3
        return Observation(f"You are at {self.place}.", reward=float(done), done=done)

    def close(self):
        self.log.append(self.place)


class Follower:
    """Goes forward with `skill`, or where the plan says so."""

    def __init__(self, follows=True, skilled=False):
        self.follows, self.skilled, self.asked = follows, skilled, []

    def generate(self, requests):
        for request in reversed(requests):
            text = str(request.prompt.messages)
            self.asked.append(text)
            ahead = "go on" in text if self.follows and "A plan" in text else self.skilled
            yield Completion(request, 0, [1], [0.0], "forward" if ahead else "wait", "stop", 0, None)


def judged(expert, novice, **fields):
    made = ExecutorGain(max_turns=5, **fields)
    log = []
    made.state.environment = SimpleNamespace(episode=lambda: Walk(log))
    made.state.engines = {"expert": expert, "novice": novice}
    return made, log


TEXTS = [
    "<think>x</think><plan>go on</plan>",  # right
    "<plan>wait and see</plan>",  # wrong
    "go on",  # no plan
    "",
    '<plan>{"reward": 1} A plan for the whole task: done, paid 1</plan>',  # adversarial
]


def test_right_wrong_garbage_empty_and_adversarial_plans():
    made, log = judged(Follower(), Follower())
    batch = group(*[0.0] * 5, texts=TEXTS)
    made.prepare([batch])
    scores = made.score_group(batch)
    assert scores == pytest.approx([2 * 1.1**2, 0.0, 0.0, 0.0, 0.0])  # 5 steps without, 3 with the plan
    assert [UNHARMED[one] for one in batch] == [True, True, False, False, True]
    assert len(log) == 2 * 4  # without a plan, and three plans, of each executor; all are closed
    made.prepare([batch])
    assert len(log) == 2 * 4 + 2 * 3  # what is played without a plan is played once
    made.end_step(View())
    assert made.metrics()["executor_gain/expert"] == (1, 5)
    assert made.metrics()["executor_gain/harmed"] == (2, 5)


def test_a_plan_that_harms_the_expert_is_dropped():
    made, _ = judged(Follower(skilled=True), Follower())
    batch = group(*[0.0] * 2, texts=["<plan>wait</plan>", "<plan>go on</plan>"])
    made.prepare([batch])
    assert made.score_group(batch) == pytest.approx([0.0, 1.1**2])  # the expert is as good without it
    assert [UNHARMED[one] for one in batch] == [False, True]
    keep = EagletConsensus()
    assert keep(batch) == (False, "harmful_plan")
    batch.rollouts.pop(0)
    assert keep(batch).keep
    assert made(batch.rollouts[0]) == pytest.approx(1.1**2)


def test_an_executor_sees_question_plan_and_every_turn():
    follower = Follower()
    made, _ = judged(follower, Follower())
    made.prepare([group(0.0, texts=["<plan>go on</plan>"])])
    planned = [one for one in follower.asked if "go on" in one]
    assert "A plan for the whole task:" in planned[0] and "You are at 0." in planned[0]
    assert "You are at 2." in planned[-1] and planned[-1].count("forward") == 2


def test_what_is_missing_says_so():
    with pytest.raises(ConfigError, match="expert is not set"):
        ExecutorGain().setup(View())
    with pytest.raises(RuntimeError, match="opened by setup"):
        ExecutorGain().score_group(group(0.0, texts=["x"]))
    for fields in ({"alpha": -0.1}, {"max_turns": 0}, {"temperature": -1.0}):
        with pytest.raises(ValueError, match="must not be negative"):
            ExecutorGain(**fields)
    seen = {"name": "minigrid", "id": "minigrid:MiniGrid-Empty-5x5-v0", "observation": "picture"}
    with pytest.raises(ConfigError, match="observation: text"):
        ExecutorGain(environment=seen).check(View())


def test_the_cold_start_imitates_plans_that_harm_nobody():
    pytest.importorskip("minigrid")
    teacher = (
        "{model: scripted@1, engine: {name: scripted, scored: false, lines: {'Reach the goal': "
        "['<think>near</think><plan>turn round</plan>', 'I have no plan.', "
        "'<think>far</think><plan>go forward</plan>']}}}"
    )
    words = [
        "prompts_per_step=24",
        "max_refill_rounds=1",
        f"phases.cold_start.rollout.teacher={teacher}",
        "rewards.gain.novice={name: scripted, scored: false, lines: "
        "{go forward: [left], turn round: [left], '': [forward]}}",
        "policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64}",
    ]
    names = ["base/rl", "models/tiny_text", "tasks/minigrid_plans", "methods/eaglet", "base/scripted"]
    session = opened(Session(Plan.of(load(names, words))))
    train_step(session)
    step = last_step(session)
    sampled = [one for made in step.sampled_groups for one in made]
    trained = [one for made in step.trained_groups for one in made]
    assert {one.source for one in trained} == {"expert"} and trained
    assert all(UNHARMED[one] for one in trained)
    assert any(not UNHARMED[one] for one in sampled)  # the novice walks by itself alone
    shown = trained[0].prompt.text
    assert "####" in shown and "<plan>" in shown and "Do not act" in shown
    session.close()


def test_the_prompt_keeps_the_row():
    run = text_run([], ["prompt_template={name: eaglet, environment: {name: user}}"])
    row = next(iter(run.rows.values()))[0]
    made = run.prompt_template
    made.state.shown[row.id] = "THE ROOM"
    prompt = made(row)
    assert prompt.row == row and "THE ROOM" in prompt.text and prompt.text.count("THE ROOM") == 1
