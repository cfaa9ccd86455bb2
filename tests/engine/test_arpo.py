"""ARPO: entropies by hand, and branches of whole conversations with a scripted engine."""

import json
import math
from types import SimpleNamespace

import pytest
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.environments.calculator import Calculator
from vlrl.methods.common.conversation import Conversation, Segment
from vlrl.methods.core.sampling import Plain
from vlrl.methods.papers.arpo import BRANCHED, Arpo, Entropies, branch_of, turn_entropy
from vlrl.plugins.episodes import ACTIONS, CONVERSATION

CALL = f"<tool_call>{json.dumps({'name': 'calculator', 'arguments': {'expression': '1+1'}})}</tool_call>"


def make_run(policy, respond):
    run = View(
        policy=policy,
        engine=Fake(function=respond),
        sampling=Plain(max_tokens=120),
        environment=Calculator(),
        warn=pytest.fail,
    )
    run.engine.setup(run)
    return run


class Alternatives(Fake):
    """A fake engine that reports one alternative per token, of probability 1/2."""

    def generate(self, requests):
        for completion in super().generate(requests):
            completion.top_logprobs = [{i: math.log(0.5)} for i in completion.ids]
            yield completion


def sampled(policy, tools, strategy, counts, seen=None):
    def respond(request, index):
        begun = policy.decode(request.prefix_ids)
        if seen is not None:
            seen.append((begun, request.seed))
        return f"<answer>{request.seed}</answer>" if "tool_call" in begun else CALL

    run = make_run(policy, respond)
    run.engine = Alternatives(function=respond)
    run.engine.setup(run)
    return strategy([tools.prompt("Go"), tools.prompt("Stop")], counts, run), run


def test_entropy_by_hand():
    half = {1: math.log(0.5), 2: math.log(0.25)}
    expected = (0.5 * math.log(2) + 0.25 * math.log(4)) / math.log(100)
    assert turn_entropy([half], 20, 100) == pytest.approx(expected)
    assert (
        turn_entropy([half] * 30, 20, 100) == pytest.approx(20 * expected)
        and turn_entropy([], 20, 100) == 0.0
    )
    assert turn_entropy([{1: 0.0}], 20, 100) == 0.0, "a certain token"


@pytest.mark.parametrize(("base", "branches"), [(1.0, 2), (0.0, 0)])
def test_branches_share_their_trunk_and_go_on_by_themselves(text_policy, tools, base, branches):
    strategy = Arpo(base=base, max_turns=3)
    groups, run = sampled(text_policy, tools, strategy, [4, 4])
    for group in groups:
        assert len(group) == 4 and sorted(CONVERSATION[r] for r in group) == [0, 1, 2, 3], (
            "the group is full, with or without branches"
        )
        copies = [rollout for rollout in group if BRANCHED.on(rollout)]
        assert len(copies) == branches
        for copy in copies:
            trunk = next(r for r in group if not BRANCHED.on(r) and r.ids[:20] == copy.ids[:20])
            start = len(text_policy.tokenizer.encode(CALL))
            assert (
                copy.ids[:start] == trunk.ids[:start]
                and copy.logp[:start] == trunk.logp[:start]
                and copy.loss_mask[:start] == [True] * start
            )
            assert (
                BRANCHED[copy] == 1 and ACTIONS[copy][0] == CALL and ACTIONS[copy][1].startswith("<answer>")
            )
            assert copy.top_logprobs is None and len(copy.ids) == len(copy.logp) == len(copy.loss_mask)
        assert len({ACTIONS[rollout][1] for rollout in group}) == 4, (
            "every conversation draws from a stream of its own"
        )
    strategy.end_step(None)
    assert strategy.metrics()["arpo/branches"] == (2.0 * branches, 0.0)
    assert run.counts["environment/tool_calls"] == 8 - 2 * branches, (
        "a branch does not call what its trunk has called"
    )
    assert run.counts["environment/calls"] == 8 + 8 + (8 - 2 * branches), (
        "resets, last turns, and turns with a call"
    )


def test_a_rise_of_entropy_opens_branches_and_a_fall_closes_them(text_policy, tools):
    groups, run = sampled(text_policy, tools, Arpo(share=1.0, max_turns=3), [2, 2])
    assert all(not BRANCHED.on(rollout) for group in groups for rollout in group), "no room for branches"
    started = []
    pool = SimpleNamespace(branch=lambda owner, trunk: started.append((owner, trunk.owner)))
    for latest, opened in ((100.0, 8), (-100.0, 0)):
        strategy = Arpo(base=0.5, weight=0.2)
        trunks = [trunk_of(text_policy, tools, attempt) for attempt in range(8)]
        strategy.state.forest, strategy.state.wanted = list(trunks), {0: 16}
        strategy.state.entropy = {id(trunk): Entropies(0.0, latest) for trunk in trunks}
        started.clear()
        strategy.before_turns([SimpleNamespace(owner=trunk) for trunk in trunks], pool, run)
        assert len(started) == opened and all(
            branch.actions == trunk.actions == ["call"] for branch, trunk in started
        )
        assert set(strategy.state.entropy) == {id(trunk) for trunk in trunks}, (
            "a branch's first entropy is that of its own first turn"
        )
        strategy.state.wanted = {0: 11}
        strategy.state.forest = list(trunks)
        started.clear()
        strategy.before_turns([SimpleNamespace(owner=trunk) for trunk in trunks], pool, run)
        assert len(started) == min(opened, 3), "the budget of the group is kept"


def trunk_of(policy, tools, attempt):

    trunk = Conversation(
        0,
        attempt,
        tools.prompt("Go"),
        Plain()(tools.prompt("Go"), 0),
        attempt,
        Segment([1, 2], [0.0, 0.0], [True, True], [0, 0]),
    )
    trunk.turns, trunk.actions, trunk.states = 1, ["call"], ["s"]
    return trunk


def test_a_branch_changes_nothing_of_its_trunk(text_policy, tools):
    trunk = trunk_of(text_policy, tools, 0)
    branch = branch_of(trunk, 5, 7)
    branch.segment.add([9], [0.0], True, [0])
    branch.actions.append("x")
    assert (
        trunk.segment.ids == [1, 2]
        and trunk.actions == ["call"]
        and (branch.attempt, branch.left_at) == (5, 1)
    )


def test_wrong_settings_are_refused():
    for settings in ({"share": 0.0}, {"beam": 0}, {"base": 1.5}):
        with pytest.raises(ValueError, match="share="):
            Arpo(**settings)
