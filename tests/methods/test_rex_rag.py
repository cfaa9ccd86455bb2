"""Wrong answers taken up again after a sentence of doubt: where, with what chances, which stay, how they are weighed. A fake engine speaks."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from make import inputs
from tiny import text_run

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.conversation import CALLS, CONVERSATION, TRANSCRIPT, TURN_TEXT, TURNS
from vlrl.methods.papers.rex_rag import INSERTED, PROBE_SHARE, RexRag, RexRagBalanceHeuristic, draw_logp

DOUBTS = "rollout.doubts=[' Hm, no.', ' Hm, wait.', ' Or so.']"


def speaking(words, function):
    made = text_run(["methods/rex_rag"], ["num_minibatches=1", "sampling.max_tokens=200", "rollout.share=1", DOUBTS, *words])
    made.engine = replace(made.engine, function=function)
    made.engine.setup(made)
    return made


def test_chances_of_a_drawn_text():
    bank = [[1, 2, 3], [1, 2, 4], [1, 5], [6]]
    assert draw_logp([1, 2, 3], bank) == pytest.approx([math.log(3 / 4), math.log(2 / 3), math.log(1 / 2)])
    assert draw_logp([6], bank) == pytest.approx([math.log(1 / 4)])
    assert math.fsum(draw_logp([1, 5], bank)) == pytest.approx(math.log(1 / 4))  # every text has the same chance in all


def test_wrong_answers_are_probed():
    """Of four answers the first is right, the second wrong, the third shows none; the fourth is wrong too, and its probe is right."""

    def say(request, index):
        gold, before = request.prompt.row.answer, made.policy.decode(list(request.prefix_ids))
        if before:
            assert not request.sampling.stop and before.rstrip(".").endswith((" Hm, no", " Hm, wait", " Or so")) and "<answer>" not in before
            return f" Now: <answer>{gold if 'fourth' in before else 'x'}</answer>"
        return [f"first <answer>{gold}</answer>", "second <answer>x</answer> yes", "third", "fourth <answer>x</answer>"][turn() % 4]

    said = iter(range(10**6))
    turn = lambda: next(said)  # noqa: E731
    made = speaking(["group_size=4", "rollout.keep=0.25"], say)
    prompts = [made.prompt_template(made.rows["arithmetic"][i]) for i in range(3)]
    groups = made.rollout(prompts, [4] * 3, made)
    probes = [(g, r) for g in groups for r in g if r.source == "probe"]
    assert 3 <= len(probes) <= 4 and sum(len(g) for g in groups) == 12 + len(probes)  # 12 / 4, and what chance makes of a fraction
    assert sum("fourth" in r.text for _, r in probes) == 3  # the right ones come first
    for group, rollout in probes:
        begin, end = INSERTED[rollout]
        doubt = made.policy.decode(rollout.ids[begin:end])
        assert doubt in made.rollout.doubts and rollout.text.count("<answer>") == 1 and f"{doubt}\n Now: <answer>" in rollout.text
        assert made.policy.decode(rollout.ids[:begin]).strip() in ("second", "fourth") and rollout.loss_mask is None
        assert len(rollout.logp) == len(rollout.ids) and math.fsum(rollout.logp[begin:end]) == pytest.approx(math.log(1 / 3))
        parent = next(r for r in group if r.source == "policy" and CONVERSATION[r] == CONVERSATION[rollout])
        assert parent.logp[:begin] == rollout.logp[:begin] and parent.ids[:begin] == rollout.ids[:begin]
        assert PROBE_SHARE[rollout] == sum(r.source == "probe" for r in group) / len(group) and rollout.rewards
    made.close()
    with pytest.raises(ValueError, match="share"):
        RexRag(share=0.0)


def test_a_probe_after_a_tool_goes_on_with_it():
    """search, reply, wrong answer; the probe keeps search and reply, searches again, and answers."""

    def reply(rollout):
        return [{"role": "user", "content": "a fact <answer>y</answer>"}] if TURN_TEXT[rollout].endswith("?") else None

    def say(request, index):
        return next(said)

    said = iter(["what?", "so <answer>x</answer>", " what else?", "then <answer>7</answer>"])
    made = speaking(["rollout.keep=1"], say)
    made.environment = SimpleNamespace(name="facts", stops=(), reply=reply)
    prompt = made.prompt_template(replace(made.rows["arithmetic"][0], answer="7"))
    (group,) = made.rollout([prompt], [1], made)
    first, probe = group
    assert (TURNS[first], CALLS[first], TURNS[probe], CALLS[probe]) == (2, 1, 4, 2)
    begin, end = INSERTED[probe]
    assert probe.ids[:begin] == first.ids[:begin] and "<answer>x" not in TRANSCRIPT[probe] and "<answer>x" in first.text
    assert TRANSCRIPT[probe].count("a fact") == 2 and "a fact" not in probe.text and probe.text.endswith("then <answer>7</answer>")
    assert all(probe.loss_mask[begin:end]) and not all(probe.loss_mask[:begin]) and not all(probe.loss_mask[end:])
    assert probe.reward > first.reward
    made.close()


def test_the_balance_heuristic():
    """Half the group are probes, q = 0.5 for the second token: mu = (pi_old + 0.5) / 2."""
    logp = [[-0.1, -1.0, -0.3], [-0.1, -1.0, -0.3]]
    x = inputs(logp=logp, old=[[-0.2, -1.1, -0.3]] * 2, sampled=[[-0.2, math.log(0.5), -0.3]] * 2, advantage=[1.0, 1.0])
    INSERTED.set(x.batch.rollouts[1], (1, 2))
    PROBE_SHARE.set(x.batch.rollouts[1], 0.5)
    plain = clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, 0.2, 0.2).loss
    out = RexRagBalanceHeuristic()(x).loss
    assert torch.allclose(out[0], plain[0]) and torch.allclose(out[1, ::2], plain[1, ::2])
    assert out[1, 1].item() == pytest.approx(-math.exp(-1.0) / (0.5 * math.exp(-1.1) + 0.25))
