"""Advantage estimators on tensors: numbers by hand, limit cases, what must not matter, and refusals."""

import math
from fractions import Fraction
from itertools import combinations

import pytest
import torch

import vlrl.functional as F

GROUPED = {  # (rewards, groups, lengths) -> advantages
    "group": lambda r, g, n: F.group_advantages(r, g),
    "rloo": lambda r, g, n: F.rloo_advantages(r, g),
    "maxrl": lambda r, g, n: F.maxrl_advantages(r, g),
    "opo": lambda r, g, n: F.opo_advantages(r, n, g),
    "reinforce_pp": lambda r, g, n: F.reinforce_pp_advantages(r, n, g),
    "others_std": lambda r, g, n: F.group_advantages(r, g, baseline="leave_one_out", scale="others_std"),
    "centred_batch_std": lambda r, g, n: F.group_advantages(r, g, scale="centred_batch_std"),
    "pass_at_k_max": lambda r, g, n: F.pass_at_k_max_advantages(r, g),
    "pass_at_k": lambda r, g, n: F.pass_at_k_advantages((r > 0.5).to(r.dtype), g, 2),
    "gdpo": lambda r, g, n: F.gdpo_advantages(r[:, None], g),
}
EVERY = pytest.mark.parametrize("estimate", GROUPED.values(), ids=GROUPED)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_group_advantages_by_hand():
    rewards, groups = vector(1, 0, 0, 0, 5, 3), torch.tensor([0, 0, 0, 0, 1, 1])
    out = F.group_advantages(rewards, groups, eps=0.0)
    assert out.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5, math.sqrt(0.5), -math.sqrt(0.5)])
    population = F.group_advantages(rewards, groups, eps=0.0, unbiased=False)
    assert population.tolist() == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3, 1, -1])
    assert F.group_advantages(rewards, groups, scale="none").tolist() == [0.75, -0.25, -0.25, -0.25, 1, -1]


def test_group_advantages_over_the_std_of_the_batch():
    rewards, groups = vector(1, 0, 4, 3), torch.tensor([0, 0, 1, 1])
    pooled = math.sqrt((1 + 4 + 4 + 1) / 3)  # the mean of all is 2
    out = F.group_advantages(rewards, groups, scale="batch_std", eps=0.1)
    assert out.tolist() == pytest.approx([0.5 / (pooled + 0.1), -0.5 / (pooled + 0.1)] * 2)


def test_without_a_baseline_the_rewards_are_only_scaled():
    assert F.group_advantages(vector(3, 1), torch.tensor([0, 0]), baseline="none", scale="none").tolist() == [
        3,
        1,
    ]


@pytest.mark.parametrize("size", [2, 3, 7])
def test_leave_one_out_is_the_mean_of_the_others_and_a_scaled_mean_baseline(size):
    rewards = torch.rand(size, dtype=torch.float64)
    out = F.rloo_advantages(rewards, torch.zeros(size, dtype=torch.long))
    assert out.tolist() == pytest.approx(
        [(rewards[i] - (rewards.sum() - rewards[i]) / (size - 1)).item() for i in range(size)]
    )
    centred = F.group_advantages(rewards, torch.zeros(size, dtype=torch.long), scale="none")
    assert torch.allclose(out, size / (size - 1) * centred)


def test_reinforce_pp_counts_a_rollout_once_per_token():
    rewards, lengths, groups = vector(1, 0, 1, 0), torch.tensor([2, 1, 1, 3]), torch.tensor([0, 0, 1, 1])
    tokens = vector(1, 1, 0, 1, 0, 0, 0)
    out = F.reinforce_pp_advantages(rewards, lengths, eps=0.0)
    assert out.tolist() == pytest.approx(
        [(r - tokens.mean().item()) / tokens.std().item() for r in (1, 0, 1, 0)]
    )
    shifted = F.reinforce_pp_advantages(rewards, lengths, groups, eps=0.0)
    tokens = vector(0.5, 0.5, -0.5, 0.5, -0.5, -0.5, -0.5)
    centre, spread = tokens.mean().item(), tokens.std().item()
    assert shifted.tolist() == pytest.approx([(0.5 - centre) / spread, (-0.5 - centre) / spread] * 2)


def test_reinforce_pp_with_a_baseline_has_mean_zero_over_tokens():
    """Also where long rollouts are wrong: the mean over tokens is subtracted, as in the paper and in verl's
    masked_whiten."""
    rewards, lengths, groups = vector(1, 0, 1, 1), torch.tensor([1, 9, 2, 2]), torch.tensor([0, 0, 1, 1])
    out = F.reinforce_pp_advantages(rewards, lengths, groups)
    assert (out * lengths).sum().item() == pytest.approx(0.0, abs=1e-12)
    assert (
        out[2:].tolist() == pytest.approx([out[2].item()] * 2) and out[2].item() > 0
    )  # a group of equal rewards is shifted too


def test_leave_one_out_normalised():
    """The reward less the mean of the others, over the std of the others (NeMo RL)."""
    out = F.group_advantages(
        vector(1, 0, 0, 1),
        torch.zeros(4, dtype=torch.long),
        baseline="leave_one_out",
        scale="others_std",
        eps=0.0,
    )
    assert out.tolist() == pytest.approx(
        [(2 / 3) / 3**-0.5, (-2 / 3) / 3**-0.5] + [(-2 / 3) / 3**-0.5, (2 / 3) / 3**-0.5]
    )
    others_equal = F.group_advantages(
        vector(1, 0, 0),
        torch.zeros(3, dtype=torch.long),
        baseline="leave_one_out",
        scale="others_std",
        eps=0.0,
    )
    assert others_equal.tolist() == pytest.approx(
        [1.0, -0.5 / 0.5**0.5, -0.5 / 0.5**0.5]
    )  # the others of the first rollout do not differ


def test_batch_centring():
    """AReaL: the group's mean with the root mean square of what is left, or mean and std of the whole
    batch."""
    rewards, groups = vector(1, 0, 3, 3, 1), torch.tensor([0, 0, 1, 1, 1])
    left = vector(0.5, -0.5, 2 / 3, 2 / 3, -4 / 3)
    out = F.group_advantages(rewards, groups, scale="centred_batch_std", eps=0.0)
    assert out.tolist() == pytest.approx((left / (left.square().sum() / 4).sqrt()).tolist())
    biased = F.group_advantages(rewards, groups, scale="centred_batch_std", eps=0.0, unbiased=False)
    assert biased.tolist() == pytest.approx((left / left.square().mean().sqrt()).tolist())
    whole = F.group_advantages(rewards, groups, baseline="batch_mean", scale="batch_std", eps=0.0)
    assert whole.tolist() == pytest.approx(((rewards - 1.6) / rewards.std()).tolist())


def test_pass_at_k_by_the_maximum():
    rewards, groups = vector(0.2, 1, 0.6, 0.6, 0, 0.5), torch.tensor([0, 0, 0, 1, 1, 2])
    assert F.pass_at_k_max_advantages(rewards, groups, scale="none").tolist() == pytest.approx(
        [0, 0.4, 0, 0.6, 0, 0]
    )
    out = F.pass_at_k_max_advantages(rewards, groups, eps=0.0)
    assert out[1].item() == pytest.approx(0.4 / 0.4) and out[3].item() == pytest.approx(0.6 / (0.18**0.5))
    assert F.pass_at_k_max_advantages(vector(1, 1, 0), torch.zeros(3, dtype=torch.long)).tolist() == [
        0.0,
        0.0,
        0.0,
    ]  # two best: no margin


def test_best_and_worst_have_the_largest_variance_of_all_subsets():
    for size, keep in ((5, 2), (6, 3), (6, 4), (4, 9)):
        rewards = torch.rand(size, dtype=torch.float64)
        chosen = F.best_and_worst(rewards, torch.zeros(size, dtype=torch.long), keep)
        subsets = [
            rewards[list(rows)].var(unbiased=False).item()
            for rows in combinations(range(size), min(keep, size))
        ]
        assert chosen.sum().item() == min(keep, size) and rewards[chosen].var(
            unbiased=False
        ).item() == pytest.approx(max(subsets))
    binary = F.best_and_worst(vector(1, 1, 1, 0, 0, 0, 0, 0), torch.zeros(8, dtype=torch.long), 4)
    assert binary.tolist() == [True, True, False, False, False, False, True, True]  # two of each


def test_maxrl_is_the_mean_over_successes():
    """sum_i A_i g_i / G = mean of g over successes less the mean of g."""
    rewards, scores = vector(1, 0, 0, 1, 0), torch.rand(5, dtype=torch.float64)
    out = F.maxrl_advantages(rewards, torch.zeros(5, dtype=torch.long))
    assert (out * scores).mean().item() == pytest.approx((scores[rewards > 0].mean() - scores.mean()).item())


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"reward_B holds -1\.0"):
        F.maxrl_advantages(vector(1, -1), torch.tensor([0, 0]))


def test_opo_baseline_makes_the_length_weighted_sum_zero():
    rewards, lengths = vector(1, 0, 0.5), torch.tensor([5, 2, 3])
    out = F.opo_advantages(rewards, lengths, torch.zeros(3, dtype=torch.long))
    assert (out * lengths).sum().item() == pytest.approx(0, abs=1e-12)
    equal = F.opo_advantages(rewards, torch.tensor([4, 4, 4]), torch.zeros(3, dtype=torch.long))
    assert torch.allclose(equal, rewards - rewards.mean())


@pytest.mark.parametrize(
    ("right", "k"), [([1, 0, 0, 0], 2), ([1, 1, 0, 0, 0], 2), ([1, 0, 0, 0, 0], 3), ([1, 1, 0], 1)]
)
def test_pass_at_k_is_the_mean_over_all_subsets(right, k):
    subsets = list(combinations(range(len(right)), k))
    value = {s: Fraction(any(right[i] for i in s)) for s in subsets}
    expected = sum(value.values()) / len(subsets)
    spread = math.sqrt(expected * (1 - expected))
    own = [[value[s] for s in subsets if i in s] for i in range(len(right))]
    out = F.pass_at_k_advantages(vector(*right), torch.zeros(len(right), dtype=torch.long), k)
    assert out.tolist() == pytest.approx([float(sum(v) / len(v) - expected) / spread for v in own])


def test_gdpo_normalises_every_reward_on_its_own():
    scores, groups = torch.rand(6, 2, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    columns = [F.group_advantages(scores[:, k].contiguous(), groups) for k in (0, 1)]
    plain = F.gdpo_advantages(scores, groups, [2.0, 0.5], whiten=False)
    assert torch.allclose(plain, 2.0 * columns[0] + 0.5 * columns[1])
    whole = F.gdpo_advantages(scores, groups, [2.0, 0.5])
    assert torch.allclose(whole, (plain - plain.mean()) / (plain.std() + 1e-6))


def test_gdpo_leaves_out_what_did_not_score_a_group():
    scores, groups = torch.rand(4, 2, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    scores[1, 1] = float("nan")
    out = F.gdpo_advantages(scores, groups, whiten=False)
    assert torch.equal(out[:2], F.gdpo_advantages(scores[:2, :1], groups[:2], whiten=False))
    assert torch.equal(out[2:], F.gdpo_advantages(scores[2:], groups[2:], whiten=False))


@pytest.mark.parametrize(
    "estimate", [value for name, value in GROUPED.items() if name != "reinforce_pp"]
)  # whose mean is the batch's
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_groups_without_variance_have_exactly_no_signal(estimate, reward):
    rewards, groups = vector(*[reward] * 5, 1, 0), torch.tensor([0] * 5 + [1, 1])
    assert estimate(rewards, groups, torch.arange(1, 8))[:5].tolist() == [0.0] * 5


@EVERY
def test_the_order_of_rollouts_and_the_numbers_of_groups_do_not_matter(estimate):
    rewards, groups, lengths = (
        torch.rand(9, dtype=torch.float64),
        torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]),
        torch.randint(1, 9, (9,)),
    )
    order = torch.randperm(9)
    assert torch.equal(
        estimate(rewards[order], groups[order], lengths[order]), estimate(rewards, groups, lengths)[order]
    )
    assert torch.equal(estimate(rewards, -100 * groups, lengths), estimate(rewards, groups, lengths))


@EVERY
def test_results_have_the_dtype_of_the_rewards_and_no_gradient(estimate):
    groups, lengths = torch.tensor([0, 0, 0]), torch.tensor([2, 3, 4])
    out = estimate(torch.tensor([1.0, 0.0, 1.0], requires_grad=True), groups, lengths)
    assert out.dtype == torch.float32 and out.shape == (3,) and not out.requires_grad
    assert estimate(torch.tensor([1, 0, 1]), groups, lengths).dtype == torch.float32


def test_no_rollouts_give_no_advantages():
    empty = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    assert F.group_advantages(*empty).shape == (0,)
    assert F.reinforce_pp_advantages(empty[0], empty[1]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.group_advantages(vector(1, 0), torch.tensor([0, 0]), scale="group"),
            r"scale='group' is not known.*'batch_std'",
        ),
        (
            lambda: F.group_advantages(vector(1, 0), torch.tensor([0, 0]), baseline="median"),
            r"baseline='median' is not known.*'leave_one_out'",
        ),
        (
            lambda: F.group_advantages(vector(1, 0), torch.tensor([0.0, 0.0])),
            r"group_B has dtype torch.float32; it must hold integer group ids",
        ),
        (
            lambda: F.group_advantages(vector(1, 0, 1), torch.tensor([0, 0])),
            r"reward_B has shape \(3,\), group_B \(2,\); both must be \(B,\)",
        ),
        (
            lambda: F.group_advantages(vector(1, 0)[None], torch.tensor([[0, 0]])),
            r"group_B has shape \(1, 2\); it must be \(B,\)",
        ),
        (
            lambda: F.opo_advantages(vector(1, 0), torch.tensor([3]), torch.tensor([0, 0])),
            r"length_B has shape \(1,\), reward_B \(2,\)",
        ),
        (lambda: F.pass_at_k_advantages(vector(1, 0), torch.tensor([0, 0]), 0), r"k=0 must be 1 or more"),
        (
            lambda: F.gdpo_advantages(torch.rand(2, 2), torch.tensor([0, 0]), [1.0]),
            r"weights has 1 entries; score_BK has 2 columns",
        ),
        (
            lambda: F.gdpo_advantages(torch.rand(2), torch.tensor([0, 0])),
            r"score_BK has shape \(2,\); it must be \(B, K\)",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
