"""Keys and values of conversations between the turns: the same samples and log-probs, fewer tokens in the
forward."""

import dataclasses

import pytest
import torch
from test_episodes_in_rollouts import make_run
from test_summaries import Rooms

from vlrl.engine.hf import conversation_cache
from vlrl.engine.hf.engine import HF
from vlrl.environments.zoom import Zoom
from vlrl.methods.core.rollout import MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.types import Sampling

STOPS = tuple(range(0, 500, 3))


def play(policy, prompts, world, **engine):
    """The rollouts of conversations and the engine that sampled them."""
    run = make_run(policy, world, None)
    run.engine, run.sampling = HF(**engine).attach(policy), Plain(max_tokens=8, stop_ids=STOPS)
    groups = MultiTurn(max_turns=6)(prompts, [3] * len(prompts), run)
    return [rollout for group in groups for rollout in group], run.engine


def same(ours, plain):
    """True; raises AssertionError where ids or log-probs differ."""
    assert [rollout.ids for rollout in ours] == [rollout.ids for rollout in plain] and len(ours) == len(plain)
    for one, other in zip(ours, plain):
        torch.testing.assert_close(torch.tensor(one.logp), torch.tensor(other.logp), atol=1e-5, rtol=0)
    return True


@pytest.mark.parametrize("engine", [{}, {"lookup_tokens": 3}, {"token_budget": 700}])
def test_conversations_are_the_same_and_only_what_is_new_is_prefilled(text_policy, tools, engine):
    prompts, world = (
        [tools.prompt("Go"), tools.prompt("Stop it at once")],
        Rooms(last=5, filler="dust and more dust"),
    )
    plain, before = play(text_policy, prompts, world, conversation_tokens=0, **engine)
    ours, after = play(text_policy, prompts, world, **engine)
    assert same(ours, plain)
    assert max(rollout.info["turns"] for rollout in ours) >= 3
    turned = after.counters["cached_tokens"]
    assert turned > 0 and before.counters["cached_tokens"] == 0 == before.counters["prompt_tokens"]
    assert after.counters["prefill_tokens"] + turned == before.counters["prefill_tokens"]
    assert not after.state.conversations.items and not after.state.conversations.tokens, (
        "the conversations are over"
    )
    if not engine:
        opened = sum(len(text_policy.encode(prompt)) for prompt in prompts)
        ends = sum(
            rollout.info["calls"] for rollout in ours
        )  # the last token of each turn but the last is not yet computed
        observed = sum(not mine for rollout in ours for mine in rollout.trained_mask)
        assert after.counters["prefill_tokens"] == opened + observed + ends, (
            "prompts once, observations, and the tokens that ended turns"
        )


def test_long_observations_go_in_pieces(text_policy, tools, monkeypatch):
    prompts, world = (
        [tools.prompt("Go"), tools.prompt("Stop")],
        Rooms(last=4, filler="dust and more dust " * 3),
    )
    plain, _ = play(text_policy, prompts, world, conversation_tokens=0)
    monkeypatch.setattr(conversation_cache, "CHUNK", 7)
    assert same(play(text_policy, prompts, world)[0], plain)


def test_prompts_with_pictures_and_their_replies(policy, tools):
    """Positions behind a picture are those of its family; a prompt with a new picture is prefilled whole."""
    prompts, world = (
        [tools.prompt("Find", tools.Noise(1)), tools.prompt("Look", tools.Noise(2), tools.Noise(3))],
        Rooms(last=4, filler="dust"),
    )
    plain, _ = play(policy, prompts, world, conversation_tokens=0)
    ours, engine = play(policy, prompts, world)
    assert same(ours, plain)
    assert engine.counters["cached_tokens"] > 0
    shown, _ = play(policy, prompts, Rooms(last=4, filler="dust", picture=True), conversation_tokens=0)
    assert same(play(policy, prompts, Rooms(last=4, filler="dust", picture=True))[0], shown)
    assert any(len(rollout.prompt.images) > 2 for rollout in shown) and Zoom().provides


def test_sliding_windows(tools):
    policy = tools.policy("gemma3")  # windows of 8 tokens in every other layer
    prompts, world = (
        [tools.prompt("Go on and on and on " * 3)],
        Rooms(last=4, filler="dust and more dust " * 2),
    )
    plain, _ = play(policy, prompts, world, conversation_tokens=0)
    assert same(play(policy, prompts, world)[0], plain)


def turn(engine, tools, prompt, prefix_ids=(), seed=0, **more):
    request = dataclasses.replace(
        tools.request(prompt, seed=seed, prefix_ids=prefix_ids, max_tokens=len(prefix_ids) + 4, **more),
        score_prefix=False,
    )
    (completion,) = engine.generate([request])
    return completion


def test_what_is_kept_is_of_one_policy_and_bounded(tools):
    policy = tools.policy("text", kind="qwen3")
    engine, prompt = HF().attach(policy), tools.prompt("Go")
    length = len(policy.encode(prompt))
    first = turn(engine, tools, prompt)
    kept = engine.state.conversations
    assert kept.tokens == length + 3 and engine.counters["cached_tokens"] == 0, (
        "the last token has no keys yet"
    )
    again = turn(engine, tools, prompt, first.ids)
    assert (
        engine.counters["cached_tokens"] == length + 3 and kept.tokens == length + 7 and len(kept.items) == 1
    ), "the newer one replaces the older"
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.3)
    policy.version += 1
    other = turn(engine, tools, prompt, again.ids)
    fresh = turn(HF(conversation_tokens=0).attach(policy), tools, prompt, again.ids)
    assert (
        other.ids == fresh.ids
        and other.logp == pytest.approx(fresh.logp, abs=1e-5)
        and engine.counters["cached_tokens"] == length + 3
    )
    engine.sync(policy)
    assert not kept.items and kept.tokens == 0
    small = HF(conversation_tokens=length + 5).attach(policy)
    one, two = turn(small, tools, prompt, seed=1), turn(small, tools, prompt, seed=2)
    assert len(small.state.conversations.items) == 1, "the oldest one left"
    turn(small, tools, prompt, one.ids)
    assert (
        small.counters["cached_tokens"] == length + conversation_cache.shared(one.ids, two.ids) and two.ids
    ), "the prompt, and what both say"
    scored = engine.generate([tools.request(prompt, prefix_ids=first.ids, max_tokens=8)])
    assert next(iter(scored)).logp[0] != 0.0 and not kept.items, (
        "where log-probs of the prefix are read, nothing is kept or taken"
    )
    with pytest.raises(ValueError, match="conversation_tokens is -1"):
        HF(conversation_tokens=-1)


def test_a_turn_of_one_token_and_one_that_has_no_room(text_policy, tools):
    engine, prompt = HF().attach(text_policy), tools.prompt("Go")
    first = turn(engine, tools, prompt, stop_ids=tuple(range(len(text_policy.tokenizer))))
    assert len(first.ids) == 1 and engine.state.conversations.tokens == len(text_policy.encode(prompt))
    again = turn(engine, tools, prompt, [*first.ids, 5, 6])
    fresh = turn(HF(conversation_tokens=0).attach(text_policy), tools, prompt, [*first.ids, 5, 6])
    assert again.ids == fresh.ids and again.logp == pytest.approx(fresh.logp, abs=1e-5)
    full = dataclasses.replace(tools.request(prompt, prefix_ids=first.ids, max_tokens=1), score_prefix=False)
    (done,) = engine.generate([full])
    assert done.ids == first.ids and done.finish == "length" and isinstance(full.sampling, Sampling)
