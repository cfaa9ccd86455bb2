"""Tokens of tools, environments, hints and templates have no part in advantages, lengths and counts: each by
hand, against a rollout without them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from make import group, run

from vlrl.methods.common.branching import branch_rollout
from vlrl.methods.common.value_networks import ValueHead
from vlrl.methods.core.advantage import GAE, GRPO, BestAndWorst, ReinforcePP
from vlrl.methods.core.critic import RETURNS, Critic
from vlrl.methods.core.metric import Lengths, Repetition, Surprisal
from vlrl.methods.core.reward_shaping import (
    TOKEN_REWARDS,
    KLInReward,
    KLTokenReward,
    OverlongFilter,
    SoftOverlong,
)
from vlrl.methods.papers.campo import Campo
from vlrl.methods.papers.efficiencysteering_ser_rl import EfficiencysteeringSerRl
from vlrl.methods.papers.grpo_lambda import sigmoid_of_length
from vlrl.methods.papers.kimi_k1_5 import KimiK15LengthReward
from vlrl.methods.papers.laser_2 import Laser2
from vlrl.methods.papers.less import LESS
from vlrl.methods.papers.opo import OPO
from vlrl.methods.papers.ppl import PplLateBonus, log_perplexity
from vlrl.methods.papers.progrpo import ProGRPO
from vlrl.methods.papers.remax import ReMax
from vlrl.methods.papers.rorecomp import first, only
from vlrl.plugins.registry import build
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Reward
from vlrl.trainer.step.ending import describe
from vlrl.trainer.step.loss_inputs import denominators_of
from vlrl.types import Completion, Request, Sampling

TOOL = [True, False, False, True, True]  # two tokens of a tool between three of the policy


def with_tool(*rewards, **fields):
    """A group whose first rollout has 5 tokens, 2 of a tool's; the others have 4 of their own."""
    others = len(rewards) - 1
    return group(*rewards, lengths=[5] + [4] * others, loss_mask=[TOOL] + [None] * others, **fields)


def alone(*rewards, **fields):
    """The same without the tool's tokens."""
    return group(*rewards, lengths=[3] + [4] * (len(rewards) - 1), **fields)


def signals(made, **values):
    for name, rows in values.items():
        for rollout, row in zip(made, rows, strict=True):
            rollout.signals[name] = row
    return made


def test_reinforce_pp_and_opo_weigh_a_rollout_by_its_trained_tokens():
    for estimator in (ReinforcePP(), ReinforcePP(baseline=True), OPO()):
        assert (
            estimator([with_tool(1, 0, 1)])
            == estimator([alone(1, 0, 1)])
            != estimator([group(1, 0, 1, lengths=[5, 4, 4])])
        )
    (row,) = OPO()([with_tool(1, 0)])
    assert row == pytest.approx([1 - 3 / 7, -3 / 7])


def test_gae_skips_a_tools_tokens():
    masked = signals(with_tool(1, 0), value=[[0.1, 9.0, -9.0, 0.4, 0.7], [0.2] * 4])
    plain = signals(alone(1, 0), value=[[0.1, 0.4, 0.7], [0.2] * 4])
    for whiten in (False, True):
        estimator = GAE(gamma=0.9, lam=0.8, whiten=whiten)
        assert estimator([masked]) == estimator([plain])
        own, reference = (TOKEN_ADVANTAGES[made.rollouts[0]] for made in (masked, plain))
        assert [own[t] for t in (0, 3, 4)] == reference and own[1:3] == [0.0, 0.0]
        assert [RETURNS[masked.rollouts[0]][t] for t in (0, 3, 4)] == RETURNS[plain.rollouts[0]] and RETURNS[
            masked.rollouts[0]
        ][1:3] == [0.0, 0.0]
    last = 1 - 0.7
    middle = 0.9 * 0.7 - 0.4 + 0.9 * 0.8 * last
    GAE(gamma=0.9, lam=0.8, whiten=False)([masked])
    expected = [0.9 * 0.4 - 0.1 + 0.9 * 0.8 * middle, middle, last]
    assert [TOKEN_ADVANTAGES[masked.rollouts[0]][t] for t in (0, 3, 4)] == pytest.approx(expected)


def test_the_critic_learns_from_trained_tokens():
    made = signals(with_tool(1.0), hidden=[[[float(t), 1.0 - t] for t in range(5)]], value=[[0.0] * 5])
    RETURNS.set(made.rollouts[0], [1.0, 1e9, 1e9, 1.0, 1.0])
    loss, _ = Critic(clip=0.5).loss(ValueHead(2, 4, 0), made.rollouts)
    assert loss.item() == pytest.approx(0.5)  # values of 0 against returns of 1
    outcome, _ = Critic(objective="outcome").loss(ValueHead(2, 4, 0), made.rollouts)
    assert outcome.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


def test_critics_log_how_often_the_clip_decides():
    made = signals(group(1.0, lengths=[2]), hidden=[[[1.0, 0.0], [0.0, 1.0]]], value=[[-1.0, 0.0]])
    RETURNS.set(made.rollouts[0], [0.0, 1.0])
    _, clipped = Critic(clip=0.5).loss(ValueHead(2, 4, 0), made.rollouts)
    assert clipped == 0.5  # the first value has come from -1 to its target, past the range


def test_rewards_per_token_enter_before_the_normalisation():
    made = with_tool(1.0, 0.0)
    for rollout, row in zip(made, ([-0.1, -9.0, -9.0, -0.2, 0.0], [0.0, -0.3, 0.0, 0.0])):
        TOKEN_REWARDS.set(rollout, row)
    ReinforcePP(token_rewards=True, gamma=0.5, eps=0.0)([made])
    returns = torch.tensor(
        [-0.1 + 0.5 * (-0.2 + 0.5), -0.2 + 0.5, 1.0, -0.15, -0.3, 0.0, 0.0], dtype=torch.float64
    )
    expected = ((returns - returns.mean()) / returns.std()).tolist()
    own = [
        a
        for rollout in made
        for a, trained in zip(TOKEN_ADVANTAGES[rollout], rollout.trained_mask)
        if trained
    ]
    assert own == pytest.approx(expected) and TOKEN_ADVANTAGES[made.rollouts[0]][1:3] == [0.0, 0.0]


def test_remax_takes_rewards_per_token():
    made = with_tool(1.0)
    made.untrained = group(0.25, source=["greedy"]).rollouts
    TOKEN_REWARDS.set(made.rollouts[0], [-0.1, -9.0, -9.0, -0.2, 0.0])
    assert ReMax()([made]) == [[0.75]]
    (mean,) = ReMax(token_rewards=True)([made])
    assert TOKEN_ADVANTAGES[made.rollouts[0]] == pytest.approx(
        [0.45, 0, 0, 0.55, 0.75]
    ) and mean == pytest.approx([(0.45 + 0.55 + 0.75) / 3])


def test_kl_rewards_skip_masked_tokens_and_follow_their_target():
    made = signals(
        with_tool(1.0), ref_logp=[[-1.0, 5.0, 5.0, -2.0, -1.0]], old_logp=[[-0.5, 0.0, 0.0, -1.0, -1.0]]
    )
    assert KLInReward(beta=0.1)(made) == pytest.approx([1.0 - 0.1 * 1.5])
    shaping = KLTokenReward(beta=0.1, target=1.0, horizon=10.0)
    shaping.setup(run())
    assert shaping(made) == [1.0] and TOKEN_REWARDS[made.rollouts[0]] == pytest.approx([-0.05, 0, 0, -0.1, 0])
    shaping.end_step(run())
    assert shaping.metrics() == {
        "kl_reward/beta": pytest.approx(0.1 * (1 + 0.2 * 1 / 10)),
        "kl_reward/kl": pytest.approx(1.5),
    }
    fixed = KLInReward(beta=0.1)
    fixed(made)
    fixed.end_step(run())
    assert fixed.metrics() == {"kl_reward/beta": 0.1, "kl_reward/kl": pytest.approx(1.5)}


def shaped(shaping, made, **parts):
    shaping.setup(run(**parts))
    return shaping(made)


@pytest.mark.parametrize(
    "shaping",
    [
        SoftOverlong(limit=5, buffer=3.0),
        KimiK15LengthReward(),
        EfficiencysteeringSerRl(),
        Laser2(target=3, form="hybrid"),
        lambda made: sigmoid_of_length(made.rollouts),
    ],
    ids=["soft_overlong", "kimi", "efficiency", "laser_2", "grpo_lambda"],
)
def test_length_rewards_count_what_the_policy_sampled(shaping):
    masked, plain, whole = with_tool(1, 1, 0), alone(1, 1, 0), group(1, 1, 0, lengths=[5, 4, 4])
    value = shaping if not hasattr(shaping, "setup") else lambda made: shaped(shaping, made)
    assert value(masked) == value(plain) != value(whole)


@pytest.mark.parametrize("spec", [
    {"name": "length_range", "low": 1, "high": 4},
    {"name": "length_budget", "tokens": 3, "of": {"name": "tag_format"}},
    {"name": "cosine_length", "max_tokens": 6, "of": {"name": "tag_format"}},
    {"name": "format_length", "max_tokens": 8},
])  # fmt: skip
def test_length_scores_count_what_the_policy_sampled(spec):
    reward, texts = build(Reward, spec), ["<think>a</think><answer>b</answer>"]
    masked, plain, whole = (
        with_tool(1, texts=texts),
        alone(1, texts=texts),
        group(1, lengths=[5], texts=texts),
    )
    assert reward(masked.rollouts[0]) == reward(plain.rollouts[0]) != reward(whole.rollouts[0])


def test_a_loop_of_the_policy_is_found_around_a_tools_tokens():
    made = group(0.0, lengths=[7], finish=["length"], loss_mask=[[True, True, False, True, True, True, True]])
    made.rollouts[0].ids = [1, 2, 99, 3, 2, 3, 2]  # without the tool: 1 2 3 2 3 2
    (value,) = Campo(penalty=1.0)(made)
    assert value == pytest.approx(-4 / 6)


def test_metrics_of_lengths():
    masked, plain = with_tool(1, 0), alone(1, 0)
    assert Lengths()([masked]) == Lengths()([plain]) and Lengths()([masked])["correct"] == 3
    sampled, trained = describe([masked], [masked]), describe([plain], [plain])
    assert sampled == trained and sampled["length/mean"] == 3.5 and sampled["tokens"] == 7.0
    for made, extra in ((masked, [0.0, 0.0]), (plain, [])):
        made.rollouts[0].logp, made.rollouts[1].logp = [-1.0, *extra, -2.0, -3.0], [-0.5] * 4
    assert (
        Surprisal(parts=1)([masked]) == Surprisal(parts=1)([plain])
        and Surprisal()([masked])["correct"] == 2.0
    )
    masked.rollouts[0].ids = [7, 1, 1, 7, 7]
    assert Repetition(n=1)([masked])["max"] == pytest.approx(2 / 3)


def test_what_is_computed_from_log_probs_and_entropies_skips_masked_tokens():
    masked, plain = with_tool(1, 0), alone(1, 0)
    for made, extra in ((masked, [0.0, 0.0]), (plain, [])):
        signals(
            made,
            old_logp=[[-1.0, *extra, -2.0, -3.0], [-0.5] * 4],
            entropy=[[0.9, *extra, 0.1, 0.8], [0.5] * 4],
        )
    (a, *_), (b, *_) = masked, plain
    assert log_perplexity(a) == log_perplexity(b) == 2.0
    assert ProGRPO(share=0.5).confidence(a) == ProGRPO(share=0.5).confidence(b)
    late = [PplLateBonus()(made, [1.0, -1.0])[0] for made in (masked, plain)]
    assert [late[0][t] for t in (0, 3, 4)] == late[1]
    less = [LESS(share=0.34, min_length=1)(made, [1.0, -1.0])[0] for made in (masked, plain)]
    assert [less[0][t] for t in (0, 3, 4)] == less[1]


def test_the_order_of_lengths_is_of_what_was_sampled():
    masked = with_tool(1, 1, 1)
    assert first(masked.rollouts, 1 / 3, longest=False) == {id(masked.rollouts[0])}


def test_tokens_that_are_left_out_of_the_loss_are_still_the_policys():
    """Overlong filtering, RoRecomp, OREAL and PPPO train on fewer tokens; the completions have not become
    shorter."""
    made = only(with_tool(1, 0), [False, True])
    left_out, kept = made.rollouts
    assert (
        left_out.trained_tokens == 0
        and left_out.sampled_tokens == 3
        and kept.trained_tokens == kept.sampled_tokens == 4
    )
    assert denominators_of([made]) == (4.0, 1.0, 1.0)
    kept.leave_out([True, False, False, False])
    kept.leave_out([True, True, False, False])
    assert kept.trained_mask == [True, False, False, False] and kept.sampled_tokens == 4


def test_a_branch_has_the_length_of_its_whole_path():
    """The prefix that a branch shares is trained with its parent, but belongs to the branch's completion;
    inserted tokens do not."""
    parent = with_tool(1.0).rollouts[0]
    parent.logp = [0.0] * 5
    request = Request(parent.prompt, Sampling(), prefix_ids=(*parent.ids[:4], 50))
    completion = Completion(request, 0, [*request.prefix_ids, 60, 61], [0.0] * 7, "", "stop")
    made = SimpleNamespace(make_rollout=lambda c: type(parent)(parent.prompt, list(c.ids), logp=list(c.logp)))
    branch = branch_rollout(made, completion, parent, 4, trained=False)
    assert branch.trained_mask == [False] * 5 + [True] * 2 and branch.sampled == [
        True,
        False,
        False,
        True,
        False,
        True,
        True,
    ]
    assert (
        branch.sampled_tokens == 4
        and branch_rollout(made, completion, parent, 4, trained=True).sampled_mask is None
    )


def test_overlong_filtering():
    made = group(1, 0, 1, lengths=[4, 4, 4], finish=["stop", "length", "stop"])
    shaping = OverlongFilter()
    assert (
        shaping(made) == [1, 0, 1]
        and [r.trained_tokens for r in made] == [4, 0, 4]
        and [r.sampled_tokens for r in made] == [4, 4, 4]
    )
    shaping.end_step(run())
    assert shaping.metrics() == {"overlong_filter/masked": (1.0, 3.0)} and denominators_of([made]) == (
        8.0,
        2.0,
        1.0,
    )
    (row,) = GRPO(scale="none")([made])
    assert row == pytest.approx([1 / 3, -2 / 3, 1 / 3])  # it still counts in the baseline


def test_best_and_worst_leave_the_middle_out():
    made = group(1.0, 0.6, 0.5, 0.0)
    (row,) = BestAndWorst(keep=2, scale="none")([made])
    assert row == [0.5, 0.0, 0.0, -0.5] and [r.trained_tokens for r in made] == [3, 0, 0, 3]
