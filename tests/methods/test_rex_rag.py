"""Wrong answers taken up again after a sentence of doubt: where, with what chances, which stay, how they are
weighed. A fake engine speaks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from make import inputs
from tiny import text_run

from vlrl.config.loading import load
from vlrl.functional import clipped_ratio_loss
from vlrl.methods.papers.rex_rag import (
    ERROR_RATE,
    INSERTED,
    PROBE_SHARE,
    RexRag,
    RexRagBalanceHeuristic,
    draw_logp,
)
from vlrl.plugins.episodes import CALLS, CONVERSATION, TRANSCRIPT, TURNS, Episode, Observation
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Environment, PolicyLoss
from vlrl.trainer.views import StepView

DOUBTS = "rollout.doubts=[' Hm, no.', ' Hm, wait.', ' Or so.']"


def speaking(words, function):
    made = text_run(
        ["methods/rex_rag"],
        [
            "environment=null",
            "num_minibatches=1",
            "sampling.max_tokens=200",
            "rollout.share=1",
            DOUBTS,
            *words,
        ],
    )
    made.engine = replace(made.engine, function=function)
    made.engine.setup(made)
    return made


def test_chances_of_a_drawn_text():
    bank = [[1, 2, 3], [1, 2, 4], [1, 5], [6]]
    assert draw_logp([1, 2, 3], bank) == pytest.approx([math.log(3 / 4), math.log(2 / 3), math.log(1 / 2)])
    assert draw_logp([6], bank) == pytest.approx([math.log(1 / 4)])
    assert math.fsum(draw_logp([1, 5], bank)) == pytest.approx(
        math.log(1 / 4)
    )  # every text has the same chance in all


def test_wrong_answers_are_probed(monkeypatch):
    """Of four answers the first is right, the second wrong, the third shows none; the fourth is wrong too,
    and its probe is right."""

    def say(request, index):
        gold, before = request.prompt.row.answer, made.policy.decode(list(request.prefix_ids))
        if before:
            assert (
                not request.sampling.stop
                and before.rstrip(".").endswith((" Hm, no", " Hm, wait", " Or so"))
                and "<answer>" not in before
            )
            return f" Now: <answer>{gold if 'fourth' in before else 'x'}</answer>"
        return [
            f"first <answer>{gold}</answer>",
            "second <answer>x</answer> yes",
            "third",
            "fourth <answer>x</answer>",
        ][turn() % 4]

    said = iter(range(10**6))
    turn = lambda: next(said)  # noqa: E731
    made = speaking(["group_size=4", "rollout.keep=0.25"], say)
    monkeypatch.setattr(
        type(made.engine),
        "score_all",
        lambda self, pairs: [
            [-(" Hm" in made.policy.decode(list(ids))) - 1.0] * len(ids) for _, ids in pairs
        ],
    )
    prompts = [made.prompt_template(made.rows["arithmetic"][i]) for i in range(3)]
    groups = made.rollout(prompts, [4] * 3, StepView.between_steps(made))
    probes = [(g, r) for g in groups for r in g if r.source == "probe"]
    assert 3 <= len(probes) <= 4 and sum(len(g) for g in groups) == 12 + len(
        probes
    )  # 12 / 4, and what chance makes of a fraction
    doubts = [made.policy.decode(r.ids[slice(*INSERTED[r])]) for _, r in probes]
    assert doubts == [" Or so."] * len(probes)  # the likeliest doubts stay, whatever comes of them
    for group, rollout in probes:
        begin, end = INSERTED[rollout]
        doubt = made.policy.decode(rollout.ids[begin:end])
        assert (
            doubt in made.rollout.doubts
            and rollout.text.count("<answer>") == 1
            and f"{doubt}\n Now: <answer>" in rollout.text
        )
        assert (
            made.policy.decode(rollout.ids[:begin]).strip() in ("second", "fourth")
            and rollout.loss_mask is None
        )
        assert len(rollout.logp) == len(rollout.ids) and math.fsum(rollout.logp[begin:end]) == pytest.approx(
            math.log(1 / 3)
        )
        parent = next(r for r in group if r.source == "policy" and CONVERSATION[r] == CONVERSATION[rollout])
        assert parent.logp[:begin] == rollout.logp[:begin] and parent.ids[:begin] == rollout.ids[:begin]
        assert (
            PROBE_SHARE[rollout] == len(probes) / (12 + len(probes)) == PROBE_SHARE[group.rollouts[0]]
            and rollout.rewards
        )
        assert ERROR_RATE[rollout] == 0.75
    correct = sum(r.correct for _, r in probes)
    made.rollout.end_step(made)
    assert made.rollout.bound == pytest.approx(0.9 * 0.25 + 0.1 * correct / len(probes))
    assert made.rollout.metrics()["rex_rag/probe_accuracy"] == (correct, len(probes))
    made.close()
    with pytest.raises(ValueError, match="share"):
        RexRag(share=0.0)


def test_a_probe_after_a_tool_goes_on_with_it():
    """search, reply, wrong answer; the probe keeps search and reply, searches again, and answers."""

    class Facts(Episode):
        def step(self, action):
            asked.append(action.text)
            return (
                Observation("a fact <answer>y</answer>")
                if action.text.endswith("?")
                else Observation(done=True)
            )

    @dataclass(frozen=True)
    class Search(Environment):
        name = "facts"

        def episode(self):
            return Facts()

    asked = []

    def say(request, index):
        return next(said)

    said = iter(["what?", "so <answer>x</answer>", " what else?", "then <answer>7</answer>"])
    made = speaking(["rollout.keep=1"], say)
    made.phases[0] = replace(made.current, environment=Search())
    prompt = made.prompt_template(replace(made.rows["arithmetic"][0], answer="7"))
    (group,) = made.rollout([prompt], [1], StepView.between_steps(made))
    first, probe = group
    assert asked == ["what?", "so <answer>x</answer>", "what?", " what else?", "then <answer>7</answer>"], (
        "the search is repeated before the probe"
    )
    assert (TURNS[first], CALLS[first], TURNS[probe], CALLS[probe]) == (2, 1, 4, 2)
    begin, end = INSERTED[probe]
    assert (
        probe.ids[:begin] == first.ids[:begin]
        and "<answer>x" not in TRANSCRIPT[probe]
        and "<answer>x" in first.text
    )
    assert (
        TRANSCRIPT[probe].count("a fact") == 2
        and "a fact" not in probe.text
        and probe.text.endswith("then <answer>7</answer>")
    )
    assert (
        all(probe.loss_mask[begin:end])
        and not all(probe.loss_mask[:begin])
        and not all(probe.loss_mask[end:])
    )
    assert probe.reward > first.reward
    made.close()


def test_the_balance_heuristic():
    """A quarter of the batch are probes, 0.8 of the conversations wrong, q = 0.5 for the second token.

    A conversation: mu = 0.75 pi_old. A probe: 0.75 pi_old + 0.25 pi_old / 0.8 before the doubt, 0.75 pi_old +
    0.125 in it, pi_old behind it.
    """
    logp = [[-0.1, -1.0, -0.3], [-0.1, -1.0, -0.3]]
    x = inputs(
        logp=logp,
        old=[[-0.2, -1.1, -0.3]] * 2,
        sampled=[[-0.2, math.log(0.5), -0.3]] * 2,
        advantage=[1.0, 1.0],
    )
    INSERTED.set(x.batch.rollouts[1], (1, 2))
    plain = clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, 0.2, 0.2).loss
    assert torch.equal(RexRagBalanceHeuristic()(x).loss, plain)  # no probes were sampled
    for rollout in x.batch.rollouts:
        PROBE_SHARE.set(rollout, 0.25)
        ERROR_RATE.set(rollout, 0.8)
    out = RexRagBalanceHeuristic(low=1.0, high=9.0)(x).loss
    ratio = [[math.exp(new - old) for new, old in zip(row, (-0.2, -1.1, -0.3))] for row in logp]
    assert out[0].tolist() == pytest.approx([-r / 0.75 for r in ratio[0]])
    probe = [ratio[1][0] / (0.75 + 0.25 / 0.8), math.exp(-1.0) / (0.75 * math.exp(-1.1) + 0.125), ratio[1][2]]
    assert out[1].tolist() == pytest.approx([-r for r in probe])


def test_the_dual_clip_bounds_what_became_likely_though_wrong():
    x = inputs(logp=[[-0.1, -0.1]], old=[[-0.1 - math.log(5), -0.1]], advantage=-1.0)  # ratios 5 and 1
    assert RexRagBalanceHeuristic()(x).loss[0].tolist() == pytest.approx([5.0, 1.0])
    assert RexRagBalanceHeuristic(dual_clip=3.0)(x).loss[0].tolist() == pytest.approx([3.0, 1.0])


def test_the_preset_has_no_dual_clip_and_six_turns():
    """The release leaves its dual clip out of compute_policy_loss, asks for a last turn behind max_turns 5,
    and lets a turn without an action go on."""
    config = load(["methods/rex_rag"]).tree
    loss = build(PolicyLoss, config["policy_loss"], "policy_loss")
    x = inputs(logp=[[-0.1]], old=[[-0.1 - math.log(5)]], advantage=-1.0)  # a ratio of 5
    assert loss(x).loss.item() == pytest.approx(5.0)
    assert config["rollout"]["max_turns"] == 6 and config["environment"]["retry"]
