"""The kit of the proofs: what a file may state, directions, and each reversal by hand."""

import pytest
import torch
from proof_kit.mirror import mirrored, turn_round
from proof_kit.proof import Proof, parse, proof_config
from proof_kit.prove import holds, prove
from proof_kit.reversal import about_off, swapped, turn

from vlrl.config import load
from vlrl.plugins import stages as S
from vlrl.plugins.registry import ConfigError, build
from vlrl.types import Denominators, Group, LossInputs, Prompt, Rollout, Row


def test_directions():
    assert (
        holds(2.0, 1.0, "up")
        and not holds(1.0, 1.0, "up")
        and holds(0.5, None, "up")
        and not holds(None, 1.0, "down")
    )
    assert holds(1.0, 2.0, "down") and holds(1.0, 2.0, "changes") and not holds(1.0, 1.0, "changes")


def test_proofs_are_checked():
    assert parse({"observe": "mixed_groups", "off": "a=1", "with": ["b=2"]}, "x.yaml") == Proof(
        "mixed_groups", ("a=1",), with_=("b=2",)
    )
    for stated, message in (
        ({"observe": "mixed_group"}, "no observable 'mixed_group'"),
        ({"observe": "rows/knights"}, "no observable 'rows/knights'"),
        ({"observe": "mixed_groups", "direction": "sideways"}, "direction"),
        ({"observe": "mixed_groups", "also": {"mixed_group": "up"}}, "no observable 'mixed_group'"),
        ({"observe": "mixed_groups", "also": {"mixed_groups": "more"}}, "'more' of 'mixed_groups'"),
        ({"observe": "mixed_groups", "reverse": []}, "reverse"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(stated, "x.yaml")
    config = proof_config("methods/dapo", "lab_arithmetic", Proof("mixed_groups", with_=("group_size=2",)))
    assert (
        config.tree["engine"]["name"] == "scripted"
        and config.tree["group_size"] == 2
        and config.tree["policy"]["name"] == "text"
    )


def test_a_proof_may_have_further_observables():
    stated = {"observe": "trained_tokens", "direction": "up", "off": []}
    proof = parse({**stated, "also": {"log/anchor/distance": "up", "mixed_groups": "down"}}, "x.yaml")
    assert proof.observables() == {
        "trained_tokens": "up",
        "log/anchor/distance": "up",
        "mixed_groups": "down",
    }


def group(*rewards):
    prompt = Prompt(Row("r", "q", "1"), ({"role": "user", "content": "q"},))
    return Group(
        prompt,
        [Rollout(prompt, [1] * (i + 1), "a", reward=r, correct=r > 0) for i, r in enumerate(rewards)],
    )


def turned(stage, spec, slot, other=None):
    """The reversed plug-in of a slot, and the plug-in itself."""
    top, _, name = slot.partition(".")
    tree = {top: {name: dict(spec)} if name else dict(spec)}
    assert turn(tree, slot, other)
    return build(stage, tree[top][name] if name else tree[top], slot), build(stage, spec, slot)


def test_signs_are_turned():
    tree = load(["methods/grpo_kl"], ["loss_terms.kl.coef=0.25", "rewards.a={name: exact}"]).tree
    assert turn(tree, "loss_terms.kl", None) and turn(tree, "rewards.a", None)
    assert tree["loss_terms"]["kl"]["coef"] == -0.25 and tree["rewards"]["a"]["weight"] == -1.0
    assert not turn(tree, "loss_terms.entropy", None)
    with pytest.raises(ConfigError, match="no way to turn"):
        turn({"sampling": {"name": "plain"}}, "sampling", None)


def test_differences_are_turned_about_what_the_off_side_has():
    one = group(1.0, 0.0, 0.0, 0.0)
    other, own = turned(
        S.AdvantageEstimator, {"name": "grpo", "scale": "none"}, "advantage", {"name": "grpo"}
    )
    (new,), (old,), (base,) = (
        other([one]),
        own([one]),
        build(S.AdvantageEstimator, "grpo", "advantage")([one]),
    )
    assert new == pytest.approx([2 * b - a for a, b in zip(old, base)]) and new != pytest.approx(old)
    logp_BT, mask_BT = torch.full((2, 3), -1.0), torch.ones(2, 3)
    mask_BT[1, 2] = 0.0
    x = LossInputs.from_tensors(logp_BT, torch.tensor([1.0, -1.0]), mask_BT, old_logp_BT=logp_BT - 1.0)
    other, own = turned(S.PolicyLoss, {"name": "ppo_clip", "high": 0.5}, "policy_loss", {"name": "ppo_clip"})
    plain = build(S.PolicyLoss, "ppo_clip", "policy_loss")
    assert torch.allclose(other(x).loss, 2 * plain(x).loss - own(x).loss) and bool(
        (other(x).loss != own(x).loss).any()
    )
    totals = Denominators(5.0, 2.0, 1.0)
    other, own = turned(
        S.LossAggregation, {"name": "sequence_mean"}, "loss_aggregation", {"name": "token_mean"}
    )
    plain = build(S.LossAggregation, "token_mean", "loss_aggregation")
    assert torch.allclose(
        other.weights(x, totals) * own.weights(x, totals), plain.weights(x, totals) ** 2 * torch.ones(2, 3)
    )


def test_choices_are_turned():
    solved, mixed = group(1.0, 1.0), group(1.0, 0.0)
    other, own = turned(S.GroupFilter, {"name": "dynamic_sampling"}, "group_filters.mixed")
    assert [own(one).keep for one in (solved, mixed)] == [False, True]
    assert [other(one).keep for one in (solved, mixed)] == [True, False]


def test_right_and_wrong_are_swapped_for_a_while():
    one = group(1.0, 0.0, 0.0)
    one.rollouts[0].outcome = 0.75
    with mirrored([one]):
        assert [r.correct for r in one] == [False, True, True] and one.rewards == [0.0, 1.0, 1.0]
        assert one.rollouts[0].outcome == 0.25
        turn_round([one])  # those that are swapped stay so
        assert [r.correct for r in one] == [False, True, True]
    assert [r.correct for r in one] == [True, False, False] and one.rewards == [1.0, 0.0, 0.0]
    assert one.rollouts[0].outcome == 0.75 and not one.rollouts[0].info


def test_a_replay_buffer_sees_them_swapped():
    other, own = turned(S.ReplayBuffer, {"name": "superhf", "keep": 1}, "replay")
    chosen = [[r.correct for r in buffer([group(1.0, 0.0)])[0]] for buffer in (own, other)]
    assert chosen == [[True], [False]]


def test_numbers_and_orders_are_turned():
    tree = load(["methods/eepo"]).tree
    assert turn(tree, "-rollout.rate", None) and not turn(tree, "rollout/no_such_measure", None)
    rate = load(["methods/eepo"]).tree["rollout"]["rate"]
    assert build(S.RolloutStrategy, tree["rollout"], "rollout").rate == -rate
    spec = {"name": "ead", "start": 1.2, "end": 0.2, "max_tokens": 20}
    other, own = (build(S.SamplingPolicy, name, "sampling") for name in (order(spec), spec))
    prompt = group(1.0).prompt
    assert [t for _, t in other(prompt, 0).temperature] == [t for _, t in own(prompt, 0).temperature][::-1]
    assert swapped({"rl": {"steps": 1}, "two": {"steps": 2}}) == {"rl": {"steps": 2}, "two": {"steps": 1}}
    with pytest.raises(ConfigError, match="no order"):
        swapped({"rl": {}})


def order(spec):
    tree = {"sampling": dict(spec)}
    assert turn(tree, "sampling/order", None)
    return tree["sampling"]


def test_rewards_are_turned_about_those_of_the_off_side():
    on = {"a": {"name": "exact", "weight": 0.5}, "b": {"name": "numeric"}, "*": None}
    off = {"a": {"name": "exact"}, "b": {"name": "numeric"}, "c": None}
    assert about_off(on, off) == {
        "a": {"name": "exact", "weight": -0.5},
        "b": {"name": "numeric"},
        "*": None,
        "a_off": {"name": "exact", "weight": 2.0},
    }


def test_a_mechanism_without_an_opposite_says_why():
    proof = parse({"observe": "mixed_groups", "reversed": "none", "why": "speed"}, "x.yaml")
    assert proof.reversed == () and proof.why == "speed"
    for stated in ({"reversed": "none"}, {"reversed": ["a=1"], "why": "speed"}, {"why": "speed"}):
        with pytest.raises(ConfigError, match="reason"):
            parse({"observe": "mixed_groups", **stated}, "x.yaml")


def test_a_reversed_run_is_compared_with_off():
    verdict = prove("methods/grpo_kl")
    assert verdict.proven and verdict.reversed_fails is None and verdict.turned is None
