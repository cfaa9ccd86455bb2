"""Conversations beyond the context: the policy sums them up, its summary is trained, and the next rollout
begins with it."""

from dataclasses import dataclass, replace

import pytest
from test_episodes_in_rollouts import counts, make_run

from vlrl.engine.hf.engine import HF
from vlrl.methods.core.reward_shaping import LastTurnReward
from vlrl.methods.core.rollout import SUMMARY_REQUEST, MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.methods.core.turn_advantage import spread
from vlrl.methods.papers.archer_2 import transitions
from vlrl.plugins.episodes import (
    ACTIONS,
    EPISODE_END,
    EPISODE_RETURN,
    ONE_REWARD_PER_CONVERSATION,
    SEGMENT,
    TURN_REWARDS,
    TURN_SPANS,
    TURNS,
    Episode,
    Observation,
    Picture,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Environment
from vlrl.types import Group


@dataclass(frozen=True)
class Rooms(Environment):
    """Tells a number in the first room, then `filler` in each of `last` rooms; the last turn is paid 1 where
    it says the number."""

    name = "rooms"
    stops = ("!",)
    last: int = 4
    filler: str = "dust and more dust " * 8
    picture: bool = False

    def episode(self):
        return RoomsEpisode(self)


class RoomsEpisode(Episode):
    def __init__(self, settings):
        self.settings = settings

    def step(self, action):
        if action.turn == self.settings.last:
            return Observation(done=True, reward=float("417" in action.text))
        media = ()
        if self.settings.picture and action.turn == 2:
            from PIL import Image

            media = (Picture.of(Image.new("RGB", (56, 56), "red")),)
        return Observation(
            ("The number is 417. " if action.turn == 1 else "") + self.settings.filler,
            media,
            reward=0.0,
            calls=1,
        )


def seen_by(policy, request):
    return policy.tokenizer.decode([*policy.encode(request.prompt).ids, *request.prefix_ids])


def player(policy, log=None, summary="So far: {number}"):
    """Goes on in every turn, sums up what it sees, and says the number at the end if it sees one."""

    def respond(request, index):
        seen = seen_by(policy, request)
        asked = request.tag.waiting is not None
        assert asked == (SUMMARY_REQUEST[:40] in seen.rpartition("<|im_start|>user")[2]), (
            "the request is what the policy reads last"
        )
        if log is not None:
            log.append((asked, seen, request))
        number = "417" if "417" in seen else "nothing"
        if asked:
            return summary.format(number=number)
        return f"I say {number}!" if request.tag.turns == 3 else f"on {request.tag.turns}!"

    return respond


def play(policy, tools, count=1, world=None, respond=None, room=360, log=None, **settings):
    prompt = tools.prompt("Go")
    run = make_run(policy, world or Rooms(), respond or player(policy, log), max_tokens=24)
    settings = {
        "overflow": "summarise",
        "summary_tokens": 32,
        "min_turn_tokens": 24,
        "max_turns": 9,
        "max_reply_tokens": 10_000,
        **settings,
    }
    strategy = MultiTurn(max_context=len(policy.encode(prompt)) + room, **settings)
    (group,) = strategy([prompt], [count], run)
    return run, group, strategy


def test_the_policy_goes_on_from_its_own_summary(text_policy, tools):
    log = []
    run, group, strategy = play(text_policy, tools, log=log)
    assert (
        len(group) == 3
        and [SEGMENT[r] for r in group] == [0, 1, 2]
        and [TURNS[r] for r in group] == [2, 3, 4]
    )
    first, second, last = group
    for rollout in group:
        assert (
            EPISODE_END[rollout] == "done"
            and EPISODE_RETURN[rollout] == 1.0
            and len(ACTIONS[rollout]) == len(TURN_REWARDS[rollout]) == 4
        )
        assert len(text_policy.encode(rollout.prompt)) + len(rollout) <= strategy.max_context
    assert first.text == "on 0!\non 1!" and last.text == "I say 417!", "a summary is no answer"
    summary = next(c for c in log if c[0])
    start = first.info["turn_spans"][-1][1]
    assert text_policy.decode(first.ids[start:]) == "So far: 417" and all(first.loss_mask[start:]), (
        "the summary is trained where its history is"
    )
    sampled = [t for _, begin, end in TURN_SPANS[first] for t in range(begin, end)]
    assert [t for t, mine in enumerate(first.loss_mask) if mine] == sampled and [
        s[0] for s in TURN_SPANS[first]
    ] == [0, 1, 2]
    assert list(summary[2].prefix_ids) == first.ids[:start] and not summary[2].sampling.stop, (
        "the request is appended to what was sampled"
    )
    begins = text_policy.encode(second.prompt).ids
    opening = text_policy.encode(tools.prompt("Go")).ids
    assert begins[: len(opening) + len(first.ids) - start] == [*opening, *first.ids[start:]], (
        "the next prompt has the summary's ids as they were sampled"
    )
    shown = text_policy.tokenizer.decode(begins)
    assert (
        "on 1!" not in shown
        and "The number is" not in shown
        and shown.count("dust and") == 8
        and SUMMARY_REQUEST[:20] not in shown
    )
    assert [m["role"] for m in second.prompt.messages] == ["user", "assistant", "user"]
    told = counts(run)
    assert (told["summaries"], told["summaries_cut"], told["turns"], told["end/done"]) == (
        2.0,
        0.0,
        4.0,
        1.0,
    ) and told["summary_tokens"] > 4
    assert "observations_cut" not in told


@pytest.mark.parametrize(
    ("settings", "earned", "end"),
    [
        ({}, 1.0, "done"),
        ({"overflow": "end", "room": 190}, 0.0, "context"),
        ({"overflow": "cut", "room": 300}, 1.0, "done"),
    ],
)
def test_without_summaries_the_context_ends_or_is_cut(text_policy, tools, settings, earned, end):
    run, group, _ = play(text_policy, tools, **settings)
    assert EPISODE_END[group.rollouts[-1]] == end and EPISODE_RETURN[group.rollouts[-1]] == earned
    assert (len(group) == 3) == ("summaries" in counts(run)) == (not settings)


def test_what_a_summary_leaves_out_is_gone(text_policy, tools):
    _, group, _ = play(text_policy, tools, respond=player(text_policy, summary="nothing to tell"))
    assert EPISODE_RETURN[group.rollouts[-1]] == 0.0 and group.rollouts[-1].text == "I say nothing!"


def test_summaries_without_loss_are_not_trained(text_policy, tools):
    (with_loss, _, _), (without, _, _) = (
        play(text_policy, tools)[1],
        play(text_policy, tools, summary_loss=False)[1],
    )
    assert (
        with_loss.ids == without.ids
        and sum(with_loss.loss_mask) > sum(without.loss_mask)
        and len(TURN_SPANS[without]) == 2
    )
    assert not without.loss_mask[-1] and with_loss.loss_mask[-1]


def test_a_summary_that_is_cut_is_used_and_a_long_observation_behind_it_is_cut(text_policy, tools):
    run, group, strategy = play(
        text_policy, tools, respond=player(text_policy, summary="{number} " + "and " * 200)
    )
    assert (
        counts(run)["summaries_cut"] == counts(run)["summaries"] > 1
        and EPISODE_RETURN[group.rollouts[-1]] == 1.0
    )
    run, group, strategy = play(text_policy, tools, world=Rooms(filler="dust " * 300))
    assert counts(run)["observations_cut"] == 3.0 and EPISODE_END[group.rollouts[-1]] == "done"
    assert all(len(text_policy.encode(r.prompt)) + len(r) <= strategy.max_context for r in group)
    run, group, strategy = play(text_policy, tools, room=310, min_turn_tokens=130)
    assert EPISODE_END[group.rollouts[-1]] == "context" and counts(run)["summaries"] == 1.0, (
        "no room behind the summary either"
    )
    assert group.rollouts[-1].loss_mask[-1], "the summary stays with its rollout"


def test_a_prompt_without_room_for_a_summary_is_refused(text_policy, tools):
    run, group, _ = play(text_policy, tools, room=150)
    assert not group.rollouts and "kept for a summary" in run.warnings[0]


def test_pictures_of_the_history_are_left_out(policy, tools):
    picture = tools.Noise(1, (56, 56))
    run = make_run(policy, Rooms(picture=True, last=4), player(policy), max_tokens=24)
    prompt = tools.prompt("Go", picture)
    settings = {"overflow": "summarise", "summary_tokens": 32, "min_turn_tokens": 24, "max_turns": 9}
    (group,) = MultiTurn(max_context=len(policy.encode(prompt)) + 375, **settings)([prompt], [1], run)
    assert [len(r.prompt.images) for r in group] == [1, 2, 1] or [len(r.prompt.images) for r in group] == [
        1,
        2,
        2,
        1,
    ]
    assert all(r.prompt.images[0] == picture for r in group) and EPISODE_RETURN[group.rollouts[-1]] == 1.0


def test_credit_per_turn_counts_a_summary_to_the_next_turn(text_policy, tools):
    _, group, _ = play(text_policy, tools)
    rows = list(spread(group.rollouts, [1.0, 2.0, 3.0, 4.0]))
    spans = [span for rollout in group for span in TURN_SPANS[rollout]]
    assert [turn for turn, _, _ in spans] == [0, 1, 2, 2, 3, 3] and rows[0][spans[2][1]] == 3.0
    for rollout in group:
        rollout.reward = 1.0
    moves = list(transitions(Group(group.prompt, list(group))))
    assert [move.reward for move in moves] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0], (
        "the last turn is paid, wherever summaries stand"
    )


def test_the_trainer_scores_what_was_sampled(text_policy, tools):
    from vlrl.trainer.step.loss_inputs import make_batch

    run = make_run(text_policy, replace(Rooms(last=6), filler="dust and more dust " * 5), None)
    run.engine, run.sampling = HF().attach(text_policy), Plain(max_tokens=8, stop_ids=tuple(range(0, 500, 3)))
    strategy = MultiTurn(
        overflow="summarise", max_context=300, summary_tokens=12, max_turns=6, min_turn_tokens=8
    )
    groups = strategy([tools.prompt("Go"), tools.prompt("Stop")], [3, 3], run)
    rollouts = [rollout for group in groups for rollout in group]
    out = text_policy.forward(make_batch(groups, text_policy.pad_id))["logp"]
    for logp_T, rollout in zip(out, rollouts):
        for t, mine in enumerate(rollout.trained_mask):
            if mine:
                assert rollout.logp[t] == pytest.approx(logp_T[t].item(), abs=1e-4)
    assert counts(run)["summaries"] > 2 and len(rollouts) == 6 + counts(run)["summaries"] - counts(run).get(
        "end/context", 0
    )


def test_wrong_settings_are_refused(text_policy):
    with pytest.raises(ValueError, match="needs max_context"):
        MultiTurn(overflow="summarise")
    with pytest.raises(ValueError, match="summary_tokens=0"):
        MultiTurn(summary_tokens=0)
    run = make_run(text_policy, Rooms(), lambda request, index: "x")
    run.has = lambda capability: False
    with pytest.raises(ConfigError, match="'summarise' begins again .* last_turn_reward"):
        MultiTurn(overflow="summarise", max_context=100).check(run)
    MultiTurn(max_context=100).check(run)
    run.has = lambda capability: capability is ONE_REWARD_PER_CONVERSATION
    MultiTurn(overflow="summarise", max_context=100).check(run)
    assert ONE_REWARD_PER_CONVERSATION in LastTurnReward.provides
