"""Importance ratios and weights: numbers by hand, padding, refusals."""

from math import exp, log

import pytest
import torch

import vlrl.functional as F

NAN = float("nan")


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


TRAINER, ENGINE, MASK = (
    row(log(4), log(0.5), log(1.5), NAN),
    row(0.0, 0.0, 0.0, NAN),
    torch.tensor([[1, 1, 1, 0]]),
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [2.0, 0.5, 1.5, 1.0]),
        ({"cap": None}, [4.0, 0.5, 1.5, 1.0]),
        ({"mode": "mask"}, [0.0, 0.5, 1.5, 1.0]),
        ({"mode": "mask", "floor": 0.6}, [0.0, 0.0, 1.5, 1.0]),
        ({"level": "sequence", "cap": None}, [3.0]),
        ({"level": "sequence"}, [2.0]),
        ({"level": "sequence", "mode": "mask"}, [0.0]),
        ({"level": "geometric"}, [3 ** (1 / 3)]),
    ],
)
def test_weights_by_hand(settings, expected):
    out = F.importance_weights(TRAINER, ENGINE, MASK, **settings)
    assert out[0].tolist() == pytest.approx(expected) and not out.requires_grad


def test_icepop():
    assert F.icepop_weights(TRAINER, ENGINE, MASK, low=1.0, high=2.0)[0].tolist() == pytest.approx(
        [0.0, 0.0, 1.5, 1.0]
    )


def test_huge_ratios_stay_finite():
    out = F.importance_weights(row(500.0, -500.0), row(0.0, 0.0), cap=None)
    assert out[0].tolist() == pytest.approx([exp(20), exp(-20)])


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_equal_policies_have_weight_one(level):
    logp = torch.randn(3, 4)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert (F.importance_weights(logp, logp, mask, level=level) == 1).all()


def test_sequence_log_ratio_is_a_mean_over_kept_tokens():
    out = F.sequence_log_ratio(TRAINER.requires_grad_(), ENGINE, MASK)
    assert out.tolist() == [[pytest.approx(log(3) / 3)]]
    TRAINER.requires_grad_(False)
    assert F.sequence_log_ratio(row(1.0), row(0.0), torch.tensor([[0]])).item() == 0


def test_log_ratio_has_gradient_in_the_policy_alone():
    logp, old = row(-1.0, -2.0).requires_grad_(), row(-1.5, -1.0).requires_grad_()
    F.log_ratio(logp, old, torch.tensor([[True, False]])).sum().backward()
    assert logp.grad.tolist() == [[1.0, 0.0]] and old.grad is None


def test_effective_sample_size():
    assert F.effective_sample_size(torch.zeros(5)).item() == 1.0
    assert F.effective_sample_size(torch.tensor([0.0, -1e9, -1e9, -1e9])).item() == 0.25
    weights = torch.rand(7, dtype=torch.float64)
    assert F.effective_sample_size(weights.log() + 300).item() == pytest.approx(
        (weights.sum() ** 2 / 7 / weights.square().sum()).item()
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.importance_weights(TRAINER, ENGINE, level="batch"),
            r"level='batch' is not known; choose one of 'token', 'sequence', 'geometric'",
        ),
        (
            lambda: F.importance_weights(TRAINER, ENGINE, mode="clip"),
            r"mode='clip' is not known; choose one of 'truncate', 'mask'",
        ),
        (
            lambda: F.importance_weights(TRAINER, ENGINE, floor=3.0),
            r"floor=3\.0 must be in \[0, cap\], and cap is 2\.0",
        ),
        (
            lambda: F.importance_weights(TRAINER, ENGINE[:, :2]),
            r"sampled_logp_BT has shape \(1, 2\), old_logp_BT \(1, 4\)",
        ),
        (lambda: F.effective_sample_size(torch.zeros(0)), r"log_weight_N is empty"),
        (lambda: F.effective_sample_size(TRAINER), r"log_weight_N has shape \(1, 4\); it must be \(N,\)"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_batch_normalised_weights_have_mean_one():
    weights, mask = torch.tensor([[2.0, 1.0, 9.0], [0.5, 9.0, 9.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    out = F.batch_normalised(weights, mask)
    assert out[mask > 0].mean().item() == pytest.approx(1.0) and out[0, 0].item() == pytest.approx(
        2 / (3.5 / 3)
    )
    of_sequences = F.batch_normalised(
        torch.tensor([[2.0], [0.5], [7.0]]), torch.tensor([[1, 1], [1, 0], [0, 0]]), level="sequence"
    )
    assert of_sequences[:, 0].tolist() == pytest.approx(
        [2 / 1.25, 0.5 / 1.25, 7 / 1.25]
    )  # a sequence without tokens does not count
    assert F.batch_normalised(torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]
    parts = [F.weight_sums(weights[i : i + 1], mask[i : i + 1]) for i in range(2)]
    assert tuple(map(sum, zip(*parts))) == F.weight_sums(weights, mask)


@pytest.mark.parametrize(
    ("settings", "expected"),
    # u = log 4, log 0.5, log 1.5, outside: |u| 1.386, 0.693, 0.405; k2 0.961, 0.240, 0.082; k3 1.614, 0.193,
    # 0.095
    [
        ({"kind": "k1", "limit": 0.5}, [0.0, 0.0, 1.0, 1.0]),
        ({"kind": "k2", "limit": 0.25}, [0.0, 1.0, 1.0, 1.0]),
        ({"kind": "k3", "limit": 0.1}, [0.0, 0.0, 1.0, 1.0]),
        ({"kind": "k3", "limit": 1.7}, [1.0, 1.0, 1.0, 1.0]),
        ({"kind": "k1", "level": "sequence_sum", "limit": log(3) + 1e-6}, [1.0]),
        ({"kind": "k1", "level": "sequence_sum", "limit": log(3) - 1e-6}, [0.0]),
        ({"kind": "k2", "level": "sequence_mean", "limit": 0.428}, [1.0]),  # (0.961 + 0.240 + 0.082) / 3
        ({"kind": "k2", "level": "sequence_mean", "limit": 0.427}, [0.0]),
        ({"kind": "k3", "level": "sequence_max", "limit": 1.7}, [1.0]),
        ({"kind": "k3", "level": "sequence_max", "limit": 1.6}, [0.0]),
    ],
)
def test_rejection_is_zero_or_one(settings, expected):
    assert F.rejection_mask(TRAINER, ENGINE, MASK, **settings)[0].tolist() == expected


def test_rejection_names_mistakes():
    for settings, message in (
        ({"kind": "k4"}, "kind='k4'"),
        ({"level": "sequence"}, "level='sequence'"),
        ({"limit": 0.0}, "limit=0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            F.rejection_mask(TRAINER, ENGINE, MASK, **settings)


def test_off_policy_sequence_mask():
    """Only sequences that the policy has left (mean log ratio 0.5 nats) lose their tokens, and only those
    with a negative advantage."""
    logp, sampled = torch.tensor([[-2.0, -1.0, NAN]] * 3), torch.tensor([[-1.0, -1.0, NAN]] * 3)
    mask, advantages = (
        torch.tensor([[1, 1, 0]] * 3),
        torch.tensor([[-1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]),
    )
    assert F.off_policy_sequence_mask(logp, sampled, advantages, mask, delta=0.49).tolist() == [
        [0, 1, 1],
        [1, 1, 1],
        [0, 0, 1],
    ]
    assert F.off_policy_sequence_mask(logp, sampled, advantages, mask, delta=0.51).tolist() == [[1, 1, 1]] * 3
    towards = F.off_policy_sequence_mask(sampled, logp, advantages, mask, delta=0.49)
    assert towards.tolist() == [[1, 1, 1]] * 3  # a policy that makes the sequence likelier is not masked


@pytest.mark.parametrize(
    ("level", "mode", "ratio", "tokens", "expected"),
    [
        ("sequence", "truncate", 1.1, 4, 1.44),  # 1.1^4 = 1.4641 above 1.2^2
        ("sequence", "truncate", 1.04, 4, 1.16985856),  # 1.04^4 below 1.2^2, which is left as it is
        ("sequence", "truncate", 1.3, 1, 1.2),
        ("sequence", "truncate", 1.1, 9, 1.728),  # 1.1^9 = 2.3579 above 1.2^3
        ("sequence", "mask", 0.9, 4, 0.6561),  # 0.9^4 above 0.8^2 = 0.64
        ("sequence", "mask", 0.88, 4, 0.0),  # 0.88^4 = 0.59969536 below it
        ("sequence", "mask", 1.1, 4, 0.0),
        ("geometric", "truncate", 1.15, 4, 1.0954451),  # sqrt(1.2)
        ("geometric", "truncate", 1.05, 4, 1.05),
        ("geometric", "mask", 0.88, 4, 0.0),  # below sqrt(0.8) = 0.894427
        ("token", "truncate", 1.3, 1, 1.2),
    ],
)
def test_bounds_of_sequences_go_with_the_root_of_their_length(
    level: str, mode: str, ratio: float, tokens: int, expected: float
) -> None:
    """A row with padding: its length is that of its mask."""
    old = torch.full((1, 12), log(ratio))
    mask = torch.arange(12)[None] < tokens
    options = {"level": level, "mode": mode, "cap": 1.2, "floor": 0.8, "by_length": True}
    weight = F.importance_weights(old, torch.zeros(1, 12), mask, **options)[0, 0]
    assert weight.item() == pytest.approx(expected, rel=1e-5)


def test_by_length_keeps_the_share_of_rounding_that_is_cut_the_same_for_all_lengths() -> None:
    """Log ratios that are independent with a deviation of 0.05: a fixed cap cuts more of longer rows, one by
    length does not."""
    drawn = torch.Generator().manual_seed(0)
    shares = {}
    for tokens in (1, 16, 256):
        old = 0.05 * torch.randn(4000, tokens, generator=drawn)
        rows = old, torch.zeros_like(old)
        for by_length in (True, False):
            weight = F.importance_weights(*rows, level="sequence", cap=1.05, by_length=by_length)
            exact = F.importance_weights(*rows, level="sequence", cap=None)
            shares[tokens, by_length] = (weight < exact).float().mean().item()
    assert max(abs(shares[n, True] - shares[1, True]) for n in (16, 256)) < 0.03
    assert shares[256, False] > shares[1, False] + 0.2
