"""pass@k, clip fractions, log-probs and entropy of logits, rewards for length, exact statistics."""

import math
from itertools import combinations

import pytest
import torch

import vlrl.functional as F
from vlrl.functional.exact import centred, mean, std


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (4, 1), (5, 2), (6, 6)])
def test_pass_at_k_counts_subsets(n, c):
    for k in range(1, n + 1):
        draws = list(combinations([True] * c + [False] * (n - c), k))
        assert F.pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert F.pass_at_k(10_000, 1, 100) == pytest.approx(0.01)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}: need 0 <= c <= n"):
        F.pass_at_k(n, c, k)


def test_clip_fractions():
    ratio, mask = torch.tensor([[2.0, 0.5, 2.0, float("nan")]]), torch.tensor([[1, 1, 1, 0]])
    advantages = torch.tensor([[1.0, -1.0, -1.0, 1.0]])
    out = F.clip_fractions(ratio, advantages, mask)
    assert {name: value.item() for name, value in out.items()} == pytest.approx(
        {"clip_fraction": 2 / 3, "clip_high": 1 / 3, "clip_low": 1 / 3}
    )


def test_logprobs_from_logits():
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 7, (2, 3))
    for temperature in (1.0, 0.7):
        expected = (logits / temperature).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        out = F.logprobs_from_logits(logits, ids, temperature)
        assert torch.allclose(out, expected)
        assert torch.allclose(
            *(torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (out, expected))
        )


def test_entropy_from_logits():
    logits = torch.randn(4, 9, dtype=torch.float64)
    assert torch.allclose(
        F.entropy_from_logits(logits), torch.distributions.Categorical(logits=logits).entropy()
    )
    assert F.entropy_from_logits(torch.zeros(1, 8)).item() == pytest.approx(math.log(8))
    assert F.entropy_from_logits(1e4 * logits).abs().max().item() == pytest.approx(0, abs=1e-12)


def test_tokens_that_cannot_be_drawn_have_no_part_in_entropy_and_gradient():
    logits = torch.tensor([[0.0, 1.0, -math.inf]], requires_grad=True)
    out = F.entropy_from_logits(logits)
    out.backward()
    assert torch.allclose(out, F.entropy_from_logits(logits[:, :2])) and torch.isfinite(logits.grad).all()


def test_overlong_penalty():
    lengths = torch.tensor([1, 80, 81, 90, 100, 101])
    assert F.overlong_penalty(lengths, limit=100, buffer=20).tolist() == pytest.approx(
        [0, 0, -0.05, -0.5, -1, -1]
    )


def test_kimi_length_reward():
    lengths, groups = torch.tensor([10, 20, 15, 10, 20, 7, 7]), torch.tensor([0, 0, 0, 0, 0, 1, 1])
    correct = torch.tensor([1, 1, 1, 0, 0, 1, 0])
    assert F.kimi_length_reward(lengths, correct, groups).tolist() == [0.5, -0.5, 0.0, 0.0, -0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.logprobs_from_logits(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long)),
            r"ids has shape \(3,\), logits \(2, 3\)",
        ),
        (lambda: F.entropy_from_logits(torch.zeros(2, 3), 0.0), r"temperature=0\.0 must be above 0"),
        (lambda: F.overlong_penalty(torch.zeros(2), 10, 0), r"buffer=0 must be above 0 and at most limit=10"),
        (
            lambda: F.overlong_penalty(torch.zeros(2), 10, 11),
            r"buffer=11 must be above 0 and at most limit=10",
        ),
        (
            lambda: F.kimi_length_reward(torch.zeros(2), torch.zeros(3), torch.tensor([0, 0])),
            r"correct_B has shape \(3,\), group_B \(2,\)",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_exact_statistics():
    values = [0.1] * 10 + [1e16, 1.0, -1e16]
    assert mean(values) == 2.0 / 13 and mean(values[::-1]) == mean(values)
    assert mean([]) == 0.0 and mean([0.3, 0.3, 0.3]) == 0.3
    assert std([1.0]) == 0.0 and std([0.0, 2.0]) == math.sqrt(2) and std([0.0, 2.0], unbiased=False) == 1.0
    assert centred([0.3, 0.3, 0.3], 0.0) == [0.0] * 3 and centred([3.0, 1.0], 2.0) == [0.5, -0.5]


def test_overlong_filtering_leaves_truncated_completions_out():
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    assert F.overlong_mask(mask, torch.tensor([True, False])).tolist() == [[0, 0, 0], [1, 1, 0]]
    with pytest.raises(ValueError, match=r"truncated_B has shape \(3,\), mask_BT \(2, 3\)"):
        F.overlong_mask(mask, torch.zeros(3, dtype=torch.bool))
