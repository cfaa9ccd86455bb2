"""Advantages of papers: numbers by hand."""

from math import exp, gamma, log, sqrt, tanh
from types import SimpleNamespace

import pytest
import torch
from make import group, run

from vlrl.functional import value_loss
from vlrl.methods.core.advantage import GAE
from vlrl.methods.core.critic import RETURNS, VALUE_CRITIC, VALUE_CRITIC_MODEL
from vlrl.methods.core.token_credit import PER_TOKEN_CREDIT
from vlrl.methods.papers.bnpo import BNPO, beta_density
from vlrl.methods.papers.confucius3_math import Confucius3Math
from vlrl.methods.papers.dcpo import DcpoSmoothAdvantage
from vlrl.methods.papers.kimi_k1_5 import KimiK15LengthReward
from vlrl.methods.papers.nsr import Nsr
from vlrl.methods.papers.oreal import OREAL
from vlrl.methods.papers.ppl import Ppl, standardised
from vlrl.methods.papers.progrpo import ProGRPO
from vlrl.methods.papers.verl import RANK_MOMENTS, Verl, effective_rank, rank_moments
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.ranks.collectives import without_media
from vlrl.trainer.step.loss_inputs import denominators_of


def test_nsr():
    groups = [group(1, 0), group(0, 0)]
    assert Nsr()(groups) == [[0.0, -1.0], [-1.0, -1.0]]
    assert Nsr(positive=1, negative=0)(groups) == [[1.0, 0.0], [0.0, 0.0]]
    groups = [group(1, 0), group(0, 0)]
    assert Nsr(positive=0.1)(groups) == [[0.1, -1.0], [-1.0, -1.0]]
    assert all(rollout.trained_tokens for made in groups for rollout in made)


def test_nsr_leaves_the_other_kind_out_of_the_loss():
    """The release trains on batch.subset(incorrect_idx): a correct rollout is in no denominator."""
    for advantage, kept in (
        (Nsr(), [[False, True], [True, True]]),
        (Nsr(1, 0), [[True, False], [False] * 2]),
    ):
        groups = [group(1, 0), group(0, 0)]
        advantage(groups)
        assert [[rollout.trained_tokens > 0 for rollout in made] for made in groups] == kept
        wrong = sum(sum(row) for row in kept)
        tokens = len(groups[0].rollouts[0])
        assert denominators_of(groups) == (wrong * tokens, wrong, sum(any(row) for row in kept))


def test_dcpo_first_visit_is_grpo():
    (a,) = DcpoSmoothAdvantage(eps=0.0)([group(1, 0)])
    assert a == pytest.approx([sqrt(0.5), -sqrt(0.5)])


def test_dcpo_takes_the_smaller_of_two_blends():
    advantage = DcpoSmoothAdvantage(eps=0.0)
    advantage([group(1, 0)])
    # second visit: all right, A_new = 0; all rewards (1, 0, 1, 1): mean 3/4, unbiased std 1/2; A_tot = 1/2;
    # both blends 1/4
    (a,) = advantage([group(1, 1)])
    assert a == pytest.approx([0.25, 0.25])
    # third visit: (1, 0, 1, 1, 0, 0): mean 1/2, std sqrt(0.3); A_tot = -0.91287; blends A_tot / 3 and 2 A_tot
    # / 3
    (a,) = advantage([group(0, 0)])
    assert a == pytest.approx([-0.5 / sqrt(0.3) / 3] * 2)
    again = DcpoSmoothAdvantage()
    again.load_state_dict(advantage.state_dict())
    assert again.state.past == {"q": [6.0, 3.0, 3.0, 3.0]}


def test_dcpo_without_any_variance_is_silent():
    advantage = DcpoSmoothAdvantage()
    for _ in range(3):
        assert advantage([group(0.1, 0.1)]) == [[0.0, 0.0]]


def test_hardness_weighs_hard_prompts_more():
    a, b = Confucius3Math()([group(1, 0, 0, 0), group(1, 1, 1, 0)])
    assert a == pytest.approx([1.5 * 1.384, *[-0.5 * 1.384] * 3]) and b[3] == pytest.approx(-1.5 * 1.128)
    assert Confucius3Math()([group(1, 1)]) == [[0.0, 0.0]]


def test_bnpo_by_hand():
    # p = 1/4 and 3/4: m = 1/2, v = 1/8 (unbiased), k = 1; a = b = 1/2; alpha = beta = 7/6
    a, b = BNPO(max_reward=1.0)([group(1, 0, 0, 0), group(1, 1, 1, 0)])
    weight = gamma(7 / 6) ** 2 / gamma(7 / 3) / (3 / 16) ** (1 / 6)
    assert a == pytest.approx([0.75 * weight, *[-0.25 * weight] * 3]) and b[3] == pytest.approx(
        -0.75 * weight
    )


def test_bnpo_without_spread_is_reinforce_with_baseline():
    assert BNPO(max_reward=1.0)([group(1, 0), group(0, 1)]) == [[0.5, -0.5], [-0.5, 0.5]]
    assert BNPO(max_reward=1.0)([group(1, 1)]) == [[0.0, 0.0]]


def test_bnpo_density_agrees_with_scipy():
    from scipy.stats import beta

    for p, a, b in ((0.3, 1.5, 2.5), (0.9, 1.0, 1.0), (0.5, 4.0, 1.2)):
        assert beta_density(p, a, b) == pytest.approx(beta(a, b).pdf(p))


def test_bnpo_decomposes_and_refuses_other_ranges():
    g = [group(0, 0, raw={"a": [1, 0], "b": [0, 1]}), group(0, 0, raw={"a": [1, 0], "b": [1, 1]})]
    parts = [BNPO(slots=(slot,))(g) for slot in ("a", "b")]
    # bnpo_ray_trainer.py:332-350 @ a9c51b98: the sum over the rewards, divided by their number
    assert BNPO(slots=("a", "b"))(g)[0] == pytest.approx(
        [(x + y) / 2 for x, y in zip(parts[0][0], parts[1][0])]
    )
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        BNPO(max_reward=1.0)([group(2.0, 0.0)])


def test_oreal():
    groups = [group(0, 1, 1, lengths=[4, 2, 5]), group(1, 1, lengths=[2, 3]), group(1, 0, lengths=[1, 1])]
    # trained: 4 and 2, 2, 1 and 1 tokens: five of right rollouts, five of wrong ones; RLOO of 0 against 1 1
    # is -1, of 1 against 0 1 is 0.5
    assert OREAL()(groups) == [[-1.0 * 0.5 * 2, 0.5 * 2, 0.0], [0.0, 0.0], [1.0 * 2, -0.5 * 2]]
    assert [rollout.loss_mask for g in groups for rollout in g] == [
        None,
        None,
        [False] * 5,
        None,
        [False] * 3,
        None,
        None,
    ]


def test_oreal_on_all_rollouts():
    (a,) = OREAL(one_each=False, negative=1.0)([group(1, 0, 0, lengths=[2, 3, 3])])
    assert a == pytest.approx([8 / 2, -0.5 * 8 / 6, -0.5 * 8 / 6])


def test_ppl_scales_by_perplexity_within_the_group():
    g = group(1, 0, logp=[[-1.0, -1.0, -1.0], [-3.0, -3.0, -3.0]])
    a, other = Ppl(eps=0.0, alpha=0.1)([g, group(1, 0, logp=[[-7.0] * 3] * 2)])
    assert a == pytest.approx([sqrt(0.5) * 1.1, -sqrt(0.5) * 0.9]) and other == pytest.approx(
        [sqrt(0.5), -sqrt(0.5)]
    )


def test_ppl_outliers_neither_set_the_scale_nor_leave_the_bounds():
    weights = standardised(
        [1.0, 1.2, 1.4, 1.6, 9.0]
    )  # quartiles 1.2 and 1.6: what is above 2.2 is an outlier
    assert weights == pytest.approx([(v - 1.3) / sqrt(0.05) for v in (1.0, 1.2, 1.4, 1.6, 9.0)])
    g = group(1, 0, 0, 0, 0, logp=[[-v] * 3 for v in (9.0, 1.0, 1.2, 1.4, 1.6)])
    (a,) = Ppl(scale="none", alpha=0.005)([g])
    assert a[0] == pytest.approx(0.8 * (1 - 0.005 * 7.7 / sqrt(0.05)))
    (a,) = Ppl(scale="none", alpha=0.1)([g])
    assert a[0] == pytest.approx(0.8 * 0.8) and a[1] == pytest.approx(-0.2 * (1 + 0.1 * 0.3 / sqrt(0.05)))


def test_progrpo_lifts_what_the_policy_is_unsure_of():
    g = group(1, 1, logp=[[log(0.5), log(0.9), -0.1], [log(0.2), -0.1, -0.1]])
    for rollout in g:
        rollout.signals["progrpo.prompt_confidence"] = [0.4] * 3
    (a,) = ProGRPO(alpha=0.3)([g])
    assert a == pytest.approx([0.3 * (0.4 - 0.5), 0.3 * (0.4 - 0.2)])
    for rollout in g:
        rollout.reward, rollout.correct = 0.1, False  # a reward for the form alone
    assert ProGRPO()([g]) == [[0.0, 0.0]]


def test_effective_rank():
    assert effective_rank(torch.eye(4)) == pytest.approx(
        3.0
    )  # centred, four corners span three directions alike
    assert (
        effective_rank(torch.tensor([[1.0, 0], [0, 0], [3, 0]])) == pytest.approx(1.0)
        and effective_rank(torch.eye(4)[:1]) == 0.0
    )
    assert effective_rank(torch.tensor([[2.0, 0], [-2, 0], [0, 1], [0, -1]])) == pytest.approx(
        exp(log(3) - 2 / 3 * log(2))
    )  # shares 2/3, 1/3


def test_rank_moments_are_differences_to_the_mean_so_far():
    # corners of a simplex: k of them have rank k - 1. Released windows (metrics_utils.py:193-232): 1 + stride
    # tokens, 1 + 2 stride, ..., as far as there are tokens
    assert rank_moments(torch.eye(4), 1) == pytest.approx(
        (3.0, (1.0 + 1.5) / 2, 0.5), abs=1e-5
    )  # 2, 3, 4 tokens
    assert rank_moments(torch.eye(7), 2) == pytest.approx(
        (6.0, (2.0 + 3.0) / 2, 1.0), abs=1e-5
    )  # 3, 5, 7: 2, 4, 6
    assert rank_moments(torch.eye(6), 2) == pytest.approx(
        (5.0, 2.0, 0.0), abs=1e-5
    )  # 3, 5; the sixth is in none
    assert rank_moments(torch.eye(4), 2) == pytest.approx((3.0, 0.0, 0.0), abs=1e-5)  # 3 alone: no difference
    assert rank_moments(torch.eye(3), 8) == pytest.approx((2.0, 0.0, 0.0), abs=1e-5)


def test_rank_moments_look_at_the_last_tokens_alone():
    # max_seq_len, 512 there: of the last three tokens 2 and 3; the rank itself is that of all tokens
    assert rank_moments(torch.eye(7), 1, last=3) == pytest.approx((6.0, 1.0, 0.0), abs=1e-5)


def test_rank_shaping_by_hand():
    shaped, base = Verl(eps=0.0, stride=2, ema=0.5), [sqrt(1 / 3), -2 * sqrt(1 / 3), sqrt(1 / 3)]
    g = group(1, 0, 1)
    for rollout, moments in zip(g, [(2.0, 1.0, 1.0)] * 3):
        RANK_MOMENTS.set(rollout, moments)
    assert shaped([g]) == [pytest.approx(base)]  # the first step only sets what the averages will hear of
    assert shaped.state.means == {} and shaped.state.last == {"er": 2.0, "erv": 1.0, "era": 1.0}
    assert shaped([g]) == [pytest.approx([a + abs(a) / 2 for a in base])]  # beside averages of 0: tanh(5)
    assert shaped.state.means == {"er": 1.0, "erv": 0.5, "era": 0.5}
    for rollout, moments in zip(g, [(1.1, 0.5, 0.5), (2.0, 1.5, 0.5), (0.5, 0.25, 4.5)]):
        RANK_MOMENTS.set(rollout, moments)
    (a,) = shaped([g])
    assert a[0] == pytest.approx(base[0] + 0.5 * tanh(0.1))  # w = 1/2 where ERA is average
    assert a[1] == pytest.approx(
        base[1] + abs(base[1]) / 2
    )  # tanh(1) / 2 + tanh(2) / 2 is more than |A| / kappa allows
    assert a[2] == pytest.approx(base[2])  # below the averages: no help
    assert shaped.state.means == pytest.approx({"er": 1.5, "erv": 0.75, "era": 0.75})
    again = Verl(eps=0.0, stride=2, ema=0.5)
    again.load_state_dict(shaped.state_dict())
    assert again([g]) == shaped([g])


def test_rank_moments_are_taken_before_states_are_left_behind():
    g = group(1, 0, lengths=[2, 2])
    for rollout in g:
        rollout.signals.update(hidden=torch.eye(2).tolist(), old_logp=[0.0, 0.0])
    Verl(stride=1).prepare([g])
    assert [RANK_MOMENTS[r] for r in without_media(g)] == [pytest.approx((1.0, 0.0, 0.0))] * 2
    assert all(set(r.signals) == {"old_logp"} for r in without_media(g)) and all(
        "hidden" in r.signals for r in g
    )


def advantages(reward, values, **settings):
    """GAE by token of one rollout."""
    g = group(reward, lengths=[len(values)], signals=[{"value": values}])
    GAE(whiten=False, **settings)([g])
    return TOKEN_ADVANTAGES[g.rollouts[0]]


def test_gae_by_hand():
    # deltas with gamma 0.5: 0 + 0.5 * 2 - 1 = 0, 1 - 2 = -1; A_0 = 0 + 0.5 * 0.5 * -1
    assert advantages(1.0, [1.0, 2.0], gamma=0.5, lam=0.5) == pytest.approx([-0.25, -1.0])
    assert advantages(1.0, [0.2, 0.5, 0.9], gamma=1.0, lam=1.0) == pytest.approx([0.8, 0.5, 0.1])  # R - V


def test_gae_writes_returns_and_whitens_over_tokens():
    g = group(1, lengths=[2])
    g.rollouts[0].signals["value"] = [0.5, 0.0]
    assert GAE(whiten=False)([g]) == [[0.75]]
    assert RETURNS[g.rollouts[0]] == [1.0, 1.0] and TOKEN_ADVANTAGES[g.rollouts[0]] == [0.5, 1.0]
    GAE()([g])
    assert TOKEN_ADVANTAGES[g.rollouts[0]] == pytest.approx([-1.0, 1.0])


def test_gae_refuses_runs_without_its_partners():
    with pytest.raises(
        ConfigError, match="token_credit 'uniform' would overwrite; use token_credit: {name: per_token}"
    ):
        GAE().check(run(token_credit=SimpleNamespace(name="uniform")))
    GAE().check(run(token_credit=SimpleNamespace(name="per_token"), capabilities=(PER_TOKEN_CREDIT,)))
    assert GAE().requires == (VALUE_CRITIC,) and GAE(values="model_value").requires == (VALUE_CRITIC_MODEL,)


def test_value_clipping():
    value, old, target = (torch.tensor([v]) for v in (1.0, 0.2, 0.0))
    assert value_loss(value, old, target).item() == 0.5
    assert value_loss(value, old, target, clip=0.1).item() == pytest.approx(0.5)  # (1 - 0)^2 > (0.3 - 0)^2
    assert value_loss(torch.tensor([0.0]), torch.tensor([0.5]), target, clip=0.1).item() == pytest.approx(
        0.08
    )


def test_kimi_length_bonus():
    g = group(1, 1, 0, 0, lengths=[2, 6, 2, 4])
    assert KimiK15LengthReward()(g) == [1.5, 0.5, 0.0, 0.0]
    assert KimiK15LengthReward()(group(1, 0)) == [1, 0]
    late = KimiK15LengthReward(warmup=5)
    late.setup(run(phase_step=4))
    assert late(g) == [1, 1, 0, 0]
    assert KimiK15LengthReward()(group(0, 0, lengths=[1, 5])) == [0.0, -0.5]
