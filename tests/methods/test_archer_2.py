"""ArCHer: transitions, targets and advantages by hand, Polyak averaging, a critic that learns who is paid,
checkpoints, and the whole pipeline."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from run_kit import last_step
from test_turn_advantage import PROMPT, episode
from tiny import steps, text_run

from vlrl.methods.papers.archer_2 import (
    UTTERANCE_ADVANTAGE,
    Archer2,
    Archer2Advantage,
    Moment,
    Transition,
    marked,
    packed,
    soft_update,
    td_targets,
    transitions,
    unpacked,
    utterance_advantages,
)
from vlrl.plugins.episodes import SEGMENT
from vlrl.plugins.registry import ConfigError
from vlrl.types import Completion, Group, Prompt, Request, Rollout, Row, Sampling

METHOD = ["methods/archer_2"]
SMALL = [
    "replay={name: archer_2, states: 6, updates: 2, batch: 4, lr: 1e-3, warmup: 0}",
    "num_minibatches=1",
    "prompts_per_step=3",
]


def test_transitions_of_an_episode():
    """Tokens of an episode with three turns: 0 1 | 2 | 3 4 | 5 | 6 7; of the reward 1.0 the last turn gets
    what the environment did not pay."""
    one = episode(0, [0.1, 0.0, 0.2], reward=1.0)
    first, second, third = transitions(Group(PROMPT, [one]))
    assert [list(t.utterance) for t in (first, second, third)] == [[0, 1], [3, 4], [6, 7]]
    assert [t.reward for t in (first, second, third)] == pytest.approx([0.1, 0.0, 0.9])
    assert (
        first.after == Moment(PROMPT, one.ids, 3)
        and second.after == Moment(PROMPT, one.ids, 6)
        and third.after is None
    )
    (alone,) = transitions(Group(PROMPT, [Rollout(PROMPT, [4, 5], reward=0.5)]))
    assert alone == Transition(Moment(PROMPT, [4, 5], 0), 2, 0.5, None), (
        "a rollout that is no conversation is one utterance"
    )


def test_an_episode_of_several_rollouts_goes_on_in_the_next_one():
    one, two = episode(0, [0.0, 1.0]), episode(0, [0.0, 1.0])
    one.ids, one.loss_mask = one.ids[:2], [True, True]
    one.info["turn_spans"], two.info["turn_spans"] = [[0, 0, 2]], [[1, 0, 2]]
    SEGMENT.set(two, 1)
    two.prompt = later = Prompt(Row("r", "q"), ({"role": "user", "content": "later"},))
    first, second = transitions(Group(PROMPT, [one, two]))
    assert (
        first.after == Moment(later, two.ids, 0)
        and first.reward == 0.0
        and second.reward == 1.0
        and second.after is None
    )


def test_targets_and_advantages_by_hand():
    next_2B = torch.tensor([[2.0, 4.0], [1.0, 8.0]])
    assert td_targets([0.5, 1.0], [False, True], next_2B, 0.9).tolist() == [
        pytest.approx([0.5 + 0.9 * 2, 1.0]),
        pytest.approx([0.5 + 0.9, 1.0]),
    ]
    q_2B, v_2B = torch.tensor([[1.0, -1.0], [0.5, 3.0]]), torch.tensor([[0.25, 2.0], [1.0, 1.5]])
    assert utterance_advantages(q_2B, v_2B).tolist() == [0.5 - 0.25, -1.0 - 1.5]


def test_the_target_follows():
    target, source = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    torch.nn.init.constant_(target.weight, 1.0)
    torch.nn.init.constant_(source.weight, 3.0)
    soft_update(target, source, 0.25)
    assert target.weight.item() == pytest.approx(1.5) and source.weight.item() == 3.0


def test_state_and_utterance_are_read_behind_their_last_tokens():
    (rollout,) = marked(Moment(PROMPT, [5, 6, 7, 8], 2), [7, 8, 9], 1)
    assert rollout.ids == [5, 6, 7, 8, 9, 1] and rollout.loss_mask == [False, False, True, False, False, True]
    (state,) = marked(Moment(PROMPT, [5, 6, 7, 8], 2), (), 1)
    assert state.ids == [5, 6, 1] and state.loss_mask == [False, False, True]


def test_the_advantage_is_the_critics():
    known, unknown = Rollout(PROMPT, [1]), Rollout(PROMPT, [1], reward=9.0)
    UTTERANCE_ADVANTAGE.set(known, -0.75)
    assert Archer2Advantage()([Group(PROMPT, [known, unknown])]) == [[-0.75, 0.0]]


def completion(run, prompt, text):
    return Completion(Request(prompt, Sampling()), 0, run.policy.encode_text(text), [0.0], text, "stop")


@pytest.mark.slow
def test_the_critic_learns_which_utterance_is_paid():
    """Two utterances in one state, one paid 1, one 0; both are drawn again and again: Q tells them apart, V
    lies between, A has their order."""
    run = text_run(METHOD, [*SMALL, "replay.updates=1", "replay.lr=1e-2", "replay.batch=4"])
    prompt, rng = run.prompt_template(Row("a", "2+2=", "4")), random.Random(0)
    told = {text: run.policy.encode_text(text) for text in ("yes", "no")}
    drawn = [
        Transition(Moment(prompt, told[text], 0), len(told[text]), float(text == "yes"), None)
        for text in ("yes", "no")
    ]
    fresh = [completion(run, prompt, text) for text in ("yes", "no")]
    losses = [run.replay.update(drawn, fresh, rng) for _ in range(20)]
    good, bad = run.replay.judged(drawn, fresh, losses)
    assert losses[0] > 1.0 and losses[-1] < 0.75, (
        "what is left is the variance of V's goals, 0 or 1 alike: 2 / 4"
    )
    assert UTTERANCE_ADVANTAGE[good.rollouts[0]] > UTTERANCE_ADVANTAGE[bad.rollouts[0]] + 0.3
    run.close()


def test_a_step_trains_on_fresh_utterances_at_stored_states():
    run = text_run(METHOD, SMALL)
    first, second = steps(run)
    assert (
        first["rollouts"] == 6
        and first["archer_2/transitions"] == 18
        and second["archer_2/transitions"] == 36
    ), "one utterance per episode"
    assert second["archer_2/critic_loss"] > 0 and all(len(group) == 1 for group in last_step(run).groups)


def test_the_actor_waits_for_the_critic():
    run = text_run(METHOD, [*SMALL, "replay.warmup=1"])
    before = copy.deepcopy(run.policy.model.state_dict())
    _ = steps(run, 1)
    assert all(torch.equal(before[name], now) for name, now in run.policy.model.state_dict().items())
    assert all(UTTERANCE_ADVANTAGE[rollout] == 0.0 for group in last_step(run).groups for rollout in group)


def test_only_the_utterance_carries_loss():
    run = text_run(METHOD, SMALL)
    prompt = run.prompt_template(Row("a", "2+2=", "4"))
    ids = run.policy.encode_text("abc")
    made = completion(run, prompt, "x")
    made.ids = [*ids, *made.ids]
    made.logp = [0.0] * len(made.ids)
    (group,) = run.replay.judged(
        [Transition(Moment(prompt, ids, len(ids)), len(ids) + 1, 0.0, None)], [made], [0.0]
    )
    assert (
        group.rollouts[0].loss_mask == [False] * len(ids) + [True] * (len(made.ids) - len(ids))
        and group.rollouts[0].text == "x"
    )
    run.close()


def test_stored_utterances_survive_a_restart():
    run = text_run(METHOD, SMALL)
    rows = list(next(iter(run.rows.values())))[:2]
    prompts = [run.prompt_template(row) for row in rows]
    ids = [1, 2, 3, 4]
    stored = [
        Transition(Moment(prompts[0], ids, 0), 2, 0.5, Moment(prompts[0], ids, 3)),
        Transition(Moment(prompts[0], ids, 3), 4, 1.0, None),
        Transition(Moment(prompts[1], [9], 0), 1, 0.0, None),
    ]
    plain = packed(stored)
    assert len(plain["sequences"]) == 2 and len(plain["prompts"]) == 2, (
        "what conversations share is stored once"
    )
    assert unpacked(plain, run) == stored
    plain["prompts"][1]["row"] = "gone"
    assert unpacked(plain, run) == stored[:2]
    run.replay.state.stored.extend(stored)
    saved = run.replay.state_dict()
    again = text_run(METHOD, SMALL)
    again.replay.load_state_dict(saved)
    assert again.replay.state.saved == packed(stored) and again.replay.state_dict()["stored"] == packed(
        stored
    )
    for name, weight in run.replay.state.critic.state_dict().items():
        assert torch.equal(weight, again.replay.state.critic.state_dict()[name])
    run.close(), again.close()


def test_impossible_values_are_refused():
    for wrong in ({"states": 0}, {"tau": 0.0}, {"gamma": 1.5}, {"warmup": -1}, {"lr": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Archer2(**wrong)
    with pytest.raises(ConfigError, match="archer_2.advantage"):
        Archer2().check(SimpleNamespace(advantage=SimpleNamespace(requires=(), name="grpo")))
