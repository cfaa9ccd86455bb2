"""MCTR: votes, the label-free reward, rules in memory and their schedule by hand; episodes that are played by
vote through a whole rollout."""

import pytest
from make import end_step
from make import group as make_group
from make import run as make_run
from tiny import opened

from vlrl.config import load
from vlrl.methods.papers.mctr import VOTE, Mctr, MctrSelfConsistency, edited, majority, vote_of
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import sample
from vlrl.trainer.views import StepView
from vlrl.types import Row


def test_votes():
    assert vote_of("<action>up</action> no, <action> Turn \n LEFT </action>") == "turn left"
    assert vote_of("<action>up<action>down</action>") == "down"
    assert vote_of("up") == vote_of("<action></action>") == vote_of("<action>up") == ""
    assert majority(["a", "b", "b", ""]) == "b" and majority(["b", "a", "a", "b"]) == "b", "ties: the first"
    assert majority(["", ""]) == majority([]) == ""
    assert vote_of("<action>" * 100_000) == ""


def voted(*votes):
    made = make_group(*[9.0] * len(votes))
    for rollout, vote in zip(made, votes, strict=True):
        VOTE.set(rollout, vote)
    return made


def test_the_reward_is_agreement():
    assert MctrSelfConsistency()(voted("up", "down", "up", "")) == [1.0, 0.0, 1.0, 0.0]
    assert MctrSelfConsistency()(voted("", "", "")) == [0.0, 0.0, 0.0], "no action is no majority"
    assert MctrSelfConsistency()(voted("down", "up")) == [1.0, 0.0]


def test_rules_are_added_dropped_and_forgotten():
    assert edited([], "<rule> Walls \n stop you. </rule> and <rule>Go on.</rule>", 8) == [
        "Walls stop you.",
        "Go on.",
    ]
    assert edited(["a", "b"], "<drop>1</drop><drop>7</drop><rule>b</rule>", 8) == ["b"]
    assert edited(["a", "b"], "<rule>c</rule>", 2) == ["b", "c"], "the newest"
    assert edited(["a"], "nothing to add, <rule></rule><rule>   </rule>", 8) == ["a"]
    assert edited([], "<rule><|im_end|><image>x</rule>", 8) == ["< |im_end|>x"], "no control tokens"
    assert edited([], "<rule>" * 50_000, 8) == []


def reflections(plugin, *replies):
    """(rules, steps until the next reflection, waited) after each step; a reply of None is a step without a
    reflection."""
    plugin._attached[:] = [make_run()]
    out = []
    for reply in replies:
        if reply is not None:
            plugin.state.proposed.append(["q", reply])
        made = make_group(1.0)
        made.prompt.row.__dict__["task"] = "q"
        end_step(plugin, [made])
        out.append(
            (list(plugin.state.rules.get("q", [])), plugin.state.every.get("q"), plugin.state.waited["q"])
        )
    return out


def test_reflection_grows_rarer_as_memory_stabilises():
    seen = reflections(Mctr(longest=4.0), "<rule>a</rule>", "none", None, "none", "none", "<rule>b</rule>")
    assert [every for _, every, _ in seen] == [1.0, 2.0, 2.0, 4.0, 4.0, 2.0], (
        "twice as many steps where nothing changed, at most 4"
    )
    assert [waited for *_, waited in seen] == [0, 0, 1, 0, 0, 0]
    assert seen[0][0] == ["a"] and seen[-1][0] == ["a", "b"]


LINES = (
    'engine={name: scripted, scored: false, lines: {"Look back at": ["<rule>Ice is cold.</rule>"], '
    '"": ["<action>down</action>", "<action>down</action>", "<action>right</action>", "hm"]}}'
)


@pytest.fixture(scope="module")
def played():
    """Two steps of frozen lake, five votes per turn, at most three turns."""
    pytest.importorskip("gymnasium")
    small = [
        "prompts_per_step=2",
        "group_size=5",
        "rollout.max_turns=3",
        "rollout.longest=2",
        "watch.rollouts_every=0",
        LINES,
    ]
    run = opened(
        Session(
            Plan.of(load(["base/rl", "models/tiny_text", "tasks/gym_frozen_lake", "methods/mctr"], small))
        )
    )
    steps = []
    for _ in range(2):
        view = StepView(run, run.begin_step())
        groups = sample(view, run.prompt_sampler(2))
        view.record.sampled_groups = groups
        run.rollout.end_step(view)
        steps.append(groups)
    yield run, steps
    run.close()


def test_each_state_is_a_group_and_the_majority_is_played(played):
    _, (first, _) = played
    assert all(len(group) == 5 for group in first) and len(first) == 6, "three turns of two episodes"
    for episode in (first[:3], first[3:]):
        actions = episode[0].rollouts[0].info["actions"]
        assert [vote_of(text) for text in actions] == [
            majority([VOTE[r] for r in group]) for group in episode
        ]
        assert episode[1].rollouts[0].loss_mask.count(True) < len(episode[1].rollouts[0].ids), (
            "the conversation so far carries no loss"
        )
        assert all(
            r.ids[: r.loss_mask.index(True)] == episode[1].rollouts[0].ids[: r.loss_mask.index(True)]
            for r in episode[1]
        )
        assert all(
            r.text in ("<action>down</action>", "<action>right</action>", "hm", "")
            for group in episode
            for r in group
        )


def test_rules_stand_in_the_next_prompts(played):
    run, (first, second) = played
    assert run.rollout.state.rules == {"frozen_lake": ["Ice is cold."]}
    assert not any("Ice is cold." in group.prompt.text for group in first) and all(
        "1. Ice is cold." in group.prompt.text for group in second
    )
    assert run.rollout.metrics()["mctr/rules"] == 1.0 and 0 < run.rollout.metrics()["mctr/agreement"] <= 1
    again = Mctr()
    again.load_state_dict(run.rollout.state_dict())
    assert "Ice is cold." in again.with_rules(run.prompt_template(Row("x", "Walk.", task="frozen_lake"))).text
    assert "Ice" not in again.with_rules(run.prompt_template(Row("x", "Walk.", task="other"))).text, (
        "rules are of a task"
    )


def test_impossible_values_are_refused():
    for wrong in (
        {"size": 0},
        {"first": 0.0},
        {"longest": 0.5},
        {"growth": 0.5},
        {"ask": "what?"},
        {"shown": ""},
    ):
        with pytest.raises(ValueError, match="size|rules"):
            Mctr(**wrong)
