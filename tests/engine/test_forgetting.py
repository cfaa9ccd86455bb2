"""What an environment takes out of the context: later turns do not see it, and the ids of the rest are those
that were sampled."""

from dataclasses import dataclass

import pytest
from test_episodes_in_rollouts import make_run

from vlrl.engine.hf.engine import HF
from vlrl.methods.common.conversation import LEFT_OUT, Segment, remembered, thought_end
from vlrl.methods.core.reward_shaping import LastTurnReward
from vlrl.methods.core.rollout import MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.episodes import ACTIONS, FORGETS, SEGMENT, Episode, Observation
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Environment
from vlrl.types import Prompt, Row


@dataclass(frozen=True)
class Told(Environment):
    """Answers turn n with the n-th of `says`, a (text, forget) pair; then the episode is over."""

    name = "told"
    says: tuple = ()
    stops = ()
    provides = (FORGETS,)

    def episode(self):
        return ToldEpisode(self.says)


class ToldEpisode(Episode):
    def __init__(self, says):
        self.says = says

    def step(self, action):
        if action.turn > len(self.says):
            return Observation(done=True)
        text, forget = self.says[action.turn - 1]
        return Observation(text, forget=forget)


def play(policy, prompt, says, turns, **settings):
    run = make_run(policy, Told(says=says, **settings), lambda request, index: turns[request.tag.turns])
    (group,) = MultiTurn(max_turns=9)([prompt], [1], run)
    return list(group)


def written(policy, rollout):
    return policy.tokenizer.decode(policy.encode(rollout.prompt).ids)


def rendered(policy, prompt, *turns):
    """What the template writes for a conversation of (role, text)."""
    messages = (
        *prompt.messages,
        *({"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns),
    )
    return policy.render(Prompt(row=Row("a", "q"), messages=messages))


def test_a_forgotten_observation_is_a_note_in_the_prompt_of_what_follows(text_policy, tools):
    prompt = tools.prompt("Go")
    rollouts = play(
        text_policy,
        prompt,
        (("useless", ""), ("useful", "observation")),
        ["search a", "<judge>No</judge> search b", "done"],
    )
    assert [rollout.text for rollout in rollouts] == ["search a\n<judge>No</judge> search b", "done"]
    assert [SEGMENT[rollout] for rollout in rollouts] == [0, 1] and len(ACTIONS[rollouts[0]]) == 3
    first, last = (written(text_policy, rollout) for rollout in rollouts)
    assert "useless" not in first and "useless" in rollouts[0].info["transcript"], (
        "the turn that judges has seen it"
    )
    assert "useless" not in last and "useful" in last
    expected = rendered(
        text_policy,
        prompt,
        ("assistant", "search a"),
        ("user", LEFT_OUT),
        ("assistant", "<judge>No</judge> search b"),
        ("user", "useful"),
    )
    assert last == expected == text_policy.render(rollouts[1].prompt)


def test_the_ids_that_stay_are_those_that_were_sampled(text_policy, tools):
    """Ids that the tokenizer would not give for their text: one per letter."""
    letters = [
        i for letter in "abcdefgh" for i in text_policy.tokenizer.encode(letter, add_special_tokens=False)
    ]
    assert letters != text_policy.tokenizer.encode("abcdefgh", add_special_tokens=False)
    prompt, note = tools.prompt("Go"), {"role": "user", "content": [{"type": "text", "text": "seen"}]}
    segment = Segment(
        ids=[*letters, 5, 6, *letters],
        spans=[[0, 0, 8], [1, 10, 18]],
        messages=[{"role": "assistant"}, note, {"role": "assistant"}],
    )
    before, ids, messages = remembered(prompt, segment, "observation", text_policy)
    assert (
        before is prompt
        and ids[:8] == letters
        and ids[-8:] == letters
        and LEFT_OUT in text_policy.decode(ids[8:-8])
    )
    assert (
        messages[1]["content"][0]["text"] == LEFT_OUT
        and messages[1]["role"] == "user"
        and note["content"][0]["text"] == "seen"
    )
    assert len(segment.ids) == 18, "the segment that is trained on is as it was"


def test_observations_are_forgotten_one_after_the_other(text_policy, tools):
    """The second one stands at the end of the prompt that forgetting the first made."""
    prompt, searches = tools.prompt("Go"), ["one", "two", "three", "four"]
    rollouts = play(
        text_policy, prompt, (("first", ""), ("second", "observation"), ("third", "observation")), searches
    )
    assert [rollout.text for rollout in rollouts] == ["one\ntwo", "three", "four"]
    turns = [
        ("assistant", "one"),
        ("user", LEFT_OUT),
        ("assistant", "two"),
        ("user", LEFT_OUT),
        ("assistant", "three"),
        ("user", "third"),
    ]
    assert written(text_policy, rollouts[2]) == rendered(text_policy, prompt, *turns)
    assert "second" in written(text_policy, rollouts[1])


def test_nothing_to_forget_continues_the_rollout(text_policy, tools):
    rollouts = play(
        text_policy,
        tools.prompt("Go"),
        (("a", "observation"), ("b", "thought")),
        ["no thought", "none", "end"],
    )
    assert [rollout.text for rollout in rollouts] == ["no thought\nnone\nend"]
    alone = play(text_policy, tools.prompt("Go"), (("a", "thought"),), ["<think>x</think>", "end"])
    kept = "<|im_end|>" in written(text_policy, alone[-1])
    assert kept and alone[0].text.startswith("<think>x</think>"), (
        "the end of the turn is said after the thought"
    )


def test_thoughts_are_left_out_of_later_turns(text_policy, tools):
    prompt = tools.prompt("Go")
    turns = [
        "<think>plan one</think>hello",
        "<think>a</think> b <think>plan two</think>there",
        "<think>bye</think>end",
    ]
    rollouts = play(text_policy, prompt, (("hi", "thought"), ("so", "thought")), turns)
    assert [rollout.text for rollout in rollouts] == turns, "every turn is trained with its thought"
    told = [("assistant", "hello"), ("user", "hi"), ("assistant", "there"), ("user", "so")]
    assert (
        written(text_policy, rollouts[2])
        == rendered(text_policy, prompt, *told)
        == text_policy.render(rollouts[2].prompt)
    )


def test_a_prefix_that_opens_the_thought_is_left_out_with_it(text_policy, tools):
    prompt = tools.prompt("Go", prefix="<think>\n")
    rollouts = play(text_policy, prompt, (("hi", "thought"),), ["plan</think>hello", "end"])
    assert written(text_policy, rollouts[1]) == rendered(
        text_policy, tools.prompt("Go"), ("assistant", "hello"), ("user", "hi")
    )
    assert written(text_policy, rollouts[0]).endswith("<think>\n")


def test_the_end_of_a_thought_in_tokens(text_policy):
    ids = text_policy.encode_text("<think>a</think>b</think>c")
    end = thought_end(ids, text_policy)
    assert (
        text_policy.decode(ids[:end]).count("</think>")
        == 2
        > text_policy.decode(ids[: end - 1]).count("</think>")
    )
    assert thought_end(text_policy.encode_text("none"), text_policy) == 0


@pytest.mark.parametrize("forget", ["observation", "thought"])
def test_the_trainer_scores_what_was_sampled(text_policy, tools, forget):
    from vlrl.trainer.step.loss_inputs import make_batch

    run = make_run(text_policy, Told(says=(("reply", ""), ("again", forget), ("more", forget))), None)
    run.engine, run.sampling = HF().attach(text_policy), Plain(max_tokens=8, stop_ids=tuple(range(0, 500, 3)))
    groups = MultiTurn(max_turns=9)([tools.prompt("Go"), tools.prompt("Stop")], [3, 3], run)
    rollouts = [rollout for group in groups for rollout in group]
    out = text_policy.forward(make_batch(groups, text_policy.pad_id))["logp"]
    for logp_T, rollout in zip(out, rollouts):
        for t, mine in enumerate(rollout.loss_mask or [True] * len(rollout)):
            if mine:
                assert rollout.logp[t] == pytest.approx(logp_T[t].item(), abs=1e-4)
    assert forget == "thought" or len(rollouts) > 6


def test_what_is_forgotten_is_recorded_and_needs_one_reward_per_conversation(text_policy):
    assert Observation.from_plain(Observation("a", forget="thought").plain()).forget == "thought"
    run = make_run(text_policy, Told(), lambda request, index: "x")
    run.has = lambda capability: capability in Told.provides
    with pytest.raises(ConfigError, match="takes parts out of the context.*last_turn_reward"):
        MultiTurn().check(run)
    run.has = lambda capability: capability in (*Told.provides, *LastTurnReward.provides)
    MultiTurn().check(run)
