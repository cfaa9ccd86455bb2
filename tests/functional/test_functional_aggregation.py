"""Aggregation: numbers by hand, splits into micro-batches, padding, refusals."""

import pytest
import torch

import vlrl.functional as F

LOSS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0], [5.0, 7.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
GROUPS = torch.tensor([0, 0, 1])
MODES = ("token_mean", "token_sum", "sequence_mean", "sequence_mean_sum", "constant", "prompt_mean")
EVERY = pytest.mark.parametrize("mode", MODES)


def settings(mode):
    return {"constant": {"length": 5}, "prompt_mean": {"group_B": GROUPS}}.get(mode, {})


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", 22 / 6),
        ("token_sum", 22),
        ("sequence_mean", (2 + 4 + 6) / 3),
        ("sequence_mean_sum", 2 + 4 + 6),
        ("constant", 22 / (3 * 5)),
        ("prompt_mean", (10 / 4 + 6) / 2),
    ],
)
def test_by_hand(mode, expected):
    assert F.aggregate(LOSS, MASK, mode, **settings(mode)).item() == pytest.approx(expected)


def test_luspo_sums_a_rollouts_tokens():
    assert F.aggregate(LOSS, MASK, "constant", length=1).item() == pytest.approx((6 + 4 + 12) / 3)


@EVERY
def test_micro_batches_of_whole_prompts_add_up_to_the_step(mode):
    totals = {"tokens": 6.0, "sequences": 3.0, "prompts": 2.0}
    parts = 0.0
    for rows in (slice(0, 2), slice(2, 3)):
        own = {**settings(mode), **({"group_B": GROUPS[rows]} if mode == "prompt_mean" else {})}
        parts += F.aggregate(LOSS[rows], MASK[rows], mode, **totals, **own).item()
    assert parts == pytest.approx(F.aggregate(LOSS, MASK, mode, **settings(mode)).item(), abs=1e-12)


@EVERY
@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_what_stands_outside_the_mask_reaches_nothing(mode, garbage):
    clean = F.aggregate(LOSS, MASK, mode, **settings(mode))
    dirty = torch.where(MASK > 0, LOSS, garbage).requires_grad_()
    out = F.aggregate(dirty, MASK, mode, **settings(mode))
    assert torch.equal(out, clean)
    out.backward()
    assert (dirty.grad[MASK == 0] == 0).all() and (dirty.grad[MASK > 0] > 0).all()


@EVERY
def test_the_gradient_is_the_weight(mode):
    loss = LOSS.clone().requires_grad_()
    F.aggregate(loss, MASK, mode, **settings(mode)).backward()
    weights = F.aggregation_weights(MASK.double(), mode, **settings(mode))
    assert weights.shape == (3, 1)
    assert torch.equal(loss.grad, weights * (MASK > 0))


@EVERY
def test_a_sequence_without_tokens_is_harmless(mode):
    mask = torch.zeros_like(MASK)
    assert F.aggregate(LOSS, mask, mode, **settings(mode)).item() == 0


def test_factors_on_tokens():
    factors = torch.tensor([[0.5], [0.0], [1.0]])
    assert F.aggregate(LOSS, MASK, weights=factors).item() == pytest.approx((3 + 12) / 6)
    one = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    loss = LOSS.clone().requires_grad_()
    F.aggregate(loss, MASK, weights=one).backward()
    assert one.grad is None and torch.allclose(loss.grad, one.detach() * MASK / 6)


def test_a_loss_per_sequence_is_averaged_over_sequences():
    loss = torch.tensor([1.0, 2.0, 6.0])
    assert F.aggregate(loss, MASK).item() == pytest.approx(3.0)
    assert F.aggregate(loss, MASK, sequences=6).item() == pytest.approx(1.5)
    assert F.aggregate(loss).item() == pytest.approx(3.0)
    without = MASK.clone()
    without[1] = 0
    assert F.aggregate(torch.tensor([1.0, float("nan"), 6.0]), without).item() == pytest.approx(7 / 2)


def test_sequences_without_trained_tokens_are_not_counted():
    """A rollout whose tokens are all left out (overlong filtering) does not shrink the mean of the others."""
    without = MASK.clone()
    without[1] = 0
    assert F.aggregate(LOSS, without, "sequence_mean").item() == pytest.approx((2 + 6) / 2)
    assert F.aggregate(LOSS, without, "constant", length=5).item() == pytest.approx(18 / (2 * 5))
    assert F.aggregate(LOSS, torch.zeros_like(MASK), "sequence_mean").item() == 0.0


def test_group_ids_need_not_count_from_zero():
    out = F.aggregate(LOSS, MASK, "prompt_mean", group_B=torch.tensor([10**12, 10**12, -3]))
    assert out.item() == pytest.approx((10 / 4 + 6) / 2)


def test_masked_mean():
    values, mask = (
        torch.tensor([[1.0, 2.0], [float("inf"), 6.0]]),
        torch.tensor([[True, True], [False, True]]),
    )
    assert F.masked_mean(values, mask).item() == 3.0
    assert F.masked_mean(values, mask, dim=0).tolist() == [1.0, 4.0]
    assert F.masked_mean(values, torch.zeros_like(mask)).item() == 0
    assert F.masked_mean(torch.tensor([1.0, 2.0])).item() == 1.5


def test_group_sums_carry_gradient():
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    (F.group_mean(values, GROUPS) * torch.tensor([1.0, 3.0, 5.0])).sum().backward()
    assert values.grad.tolist() == [2.0, 2.0, 5.0]
    assert F.group_sum(values.detach(), torch.tensor([1, 0, 1])).tolist() == [5.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.aggregate(LOSS, MASK, "mean"),
            r"mode='mean' is not known; choose one of 'token_mean', 'token_sum', 'sequence_mean'",
        ),
        (lambda: F.aggregate(LOSS[:, 0], MASK, "mean"), r"mode='mean' is not known"),
        (
            lambda: F.aggregate(LOSS, MASK, "constant"),
            r"length=None; mode='constant' needs a positive number of tokens",
        ),
        (lambda: F.aggregate(LOSS, MASK, "prompt_mean"), r"group_B=None; mode='prompt_mean' needs"),
        (lambda: F.aggregate(LOSS, MASK[:2]), r"mask_BT has shape \(2, 3\), loss \(3, 3\)"),
        (
            lambda: F.aggregate(LOSS[:, 0], MASK[:2]),
            r"mask_BT has shape \(2, 3\); it must be \(B, T\) with B = 3",
        ),
        (lambda: F.masked_mean(LOSS, MASK[:2]), r"mask has shape \(2, 3\), values \(3, 3\)"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
