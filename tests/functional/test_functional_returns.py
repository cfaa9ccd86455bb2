"""Returns, GAE, whitening, token rewards, value loss: numbers by hand, limit cases, tokens that are skipped,
refusals."""

import pytest
import torch

import vlrl.functional as F

NAN = float("nan")


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_gae_by_hand():
    rewards, values = rows([0.0, 0.0, 1.0]), rows([0.2, 0.5, 0.8])
    gamma, lam = 0.9, 0.5
    delta = [0.9 * 0.5 - 0.2, 0.9 * 0.8 - 0.5, 1 - 0.8]
    expected = [delta[0] + 0.45 * (delta[1] + 0.45 * delta[2]), delta[1] + 0.45 * delta[2], delta[2]]
    advantages, targets = F.gae(rewards, values, gamma=gamma, lam=lam)
    assert advantages[0].tolist() == pytest.approx(expected)
    assert targets[0].tolist() == pytest.approx([a + v for a, v in zip(expected, (0.2, 0.5, 0.8))])


def test_gae_limits():
    rewards, values = torch.randn(2, 3, 6, dtype=torch.float64)
    monte_carlo, targets = F.gae(rewards, values, gamma=0.9, lam=1.0)
    assert torch.allclose(monte_carlo, F.discounted_returns(rewards, gamma=0.9) - values)
    assert torch.allclose(targets, F.discounted_returns(rewards, gamma=0.9))
    one_step, _ = F.gae(rewards, values, gamma=0.9, lam=0.0)
    assert torch.allclose(
        one_step,
        rewards + 0.9 * torch.cat([values[:, 1:], torch.zeros(3, 1, dtype=torch.float64)], 1) - values,
    )


def test_skipped_tokens_are_as_if_they_were_not_there():
    rewards, values = rows([0.1, NAN, 0.3, 1.0, NAN]), rows([0.2, NAN, 0.4, 0.5, NAN])
    mask = torch.tensor([[1, 0, 1, 1, 0]])
    short = F.gae(rewards[:, [0, 2, 3]], values[:, [0, 2, 3]], gamma=0.9, lam=0.8)
    for whole, part in zip(F.gae(rewards, values, mask, 0.9, 0.8), short):
        assert torch.equal(whole[:, [0, 2, 3]], part) and whole[0, [1, 4]].tolist() == [0, 0]
    returns = F.discounted_returns(rewards, mask, 0.9)
    assert torch.equal(
        returns[:, [0, 2, 3]], F.discounted_returns(rewards[:, [0, 2, 3]], gamma=0.9)
    ) and returns[0, [1, 4]].tolist() == [0, 0]


def test_gae_has_no_gradient():
    values = rows([0.1, 0.2]).requires_grad_()
    assert not any(out.requires_grad for out in F.gae(rows([0.0, 1.0]), values))


def test_token_rewards():
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]])
    assert F.token_rewards(torch.tensor([1.0, -2.0, 3.0]), mask).tolist() == [
        [0, 1, 0],
        [0, 0, -2],
        [0, 0, 0],
    ]
    kl = torch.tensor([[1.0, 2.0, NAN], [1.0, NAN, 0.5], [NAN] * 3])
    out = F.token_rewards(torch.tensor([1.0, -2.0, 3.0]), mask, kl, 0.5)
    assert out.tolist() == [[-0.5, 0.0, 0.0], [-0.5, 0.0, -2.25], [0.0, 0.0, 0.0]]


def test_whiten():
    values, mask = rows([1.0, 2.0, NAN], [3.0, 6.0, 0.0]), torch.tensor([[1, 1, 0], [1, 1, 0]])
    out = F.whiten(values, mask, eps=0.0)
    kept = rows(1.0, 2.0, 3.0, 6.0)
    assert torch.allclose(out[:, :2].flatten(), (kept - kept.mean()) / kept.std(unbiased=False))
    assert out[:, 2].tolist() == [0, 0]
    assert F.whiten(torch.full((2, 2), 0.1)).tolist() == [[0, 0], [0, 0]]
    assert F.whiten(torch.zeros(0)).shape == (0,)


def test_whiten_does_not_depend_on_the_order():
    values = torch.randn(50, dtype=torch.float64)
    order = torch.randperm(50)
    assert torch.equal(F.whiten(values)[order], F.whiten(values[order]))


@pytest.mark.parametrize(
    ("value", "clip", "loss", "slope"),
    [(2.0, 0.0, 0.5, 1.0), (2.0, 0.5, 0.5, 1.0), (1.0, 0.5, 0.125, 0.0), (0.2, 0.5, 0.32, -0.8)],
)
def test_value_loss(value, clip, loss, slope):
    """Target 1, old value 0: with a clip of 0.5 values above 0.5 are judged at 0.5 where that is worse."""
    own = torch.tensor([value], requires_grad=True)
    out = F.value_loss(own, torch.tensor([0.0]), torch.tensor([1.0]), clip)
    out.sum().backward()
    assert out.item() == pytest.approx(loss) and own.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.gae(torch.zeros(2, 3), torch.zeros(2, 2)),
            r"value_BT has shape \(2, 2\), reward_BT \(2, 3\)",
        ),
        (lambda: F.gae(torch.zeros(3), torch.zeros(3)), r"reward_BT has shape \(3,\); it must be \(B, T\)"),
        (
            lambda: F.discounted_returns(torch.zeros(2, 3), torch.ones(3, 2)),
            r"mask_BT has shape \(3, 2\), reward_BT \(2, 3\)",
        ),
        (lambda: F.token_rewards(torch.zeros(3), torch.ones(2, 3)), r"mask_BT has 2 rows, reward_B 3"),
        (lambda: F.whiten(torch.zeros(3), torch.ones(2)), r"mask has shape \(2,\), values \(3,\)"),
        (
            lambda: F.value_loss(torch.zeros(3), torch.zeros(3), torch.zeros(2)),
            r"value, old_value and target have shapes \(3,\), \(3,\), \(2,\)",
        ),
        (
            lambda: F.value_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), -0.1),
            r"clip=-0\.1 must not be negative",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_value_clip_fraction():
    """The clip decides where the clipped value's loss is larger: the value has passed the range on the way to
    its target, or left it."""
    value, old, target = rows(2.0, 0.1, -1.0, 0.4), rows(0.0, 0.0, 0.0, 0.0), rows(2.0, 2.0, 2.0, 0.4)
    assert F.value_clip_fraction(value, old, target, 0.5).tolist() == [1.0, 0.0, 0.0, 0.0]
    slope = value.requires_grad_()
    F.value_loss(slope, old, target, 0.5).sum().backward()
    assert slope.grad.tolist() == pytest.approx([0.0, -1.9, -3.0, 0.0])
    assert F.value_clip_fraction(value, old, target, 0.0).tolist() == [0.0] * 4


def test_rounding_is_no_clipped_value():
    generator = torch.Generator().manual_seed(0)
    old, value, target = (0.1 * torch.rand(20_000, generator=generator) for _ in range(3))
    assert bool((old + (value - old) != value).any())  # both within 0.1 of each other
    assert F.value_clip_fraction(value, old, target, 0.2).sum() == 0


MASKED = torch.tensor(
    [[1, 0, 1, 1], [1, 1, 0, 0]]
)  # a tool's token within the first sequence, padding behind the second


def test_reinforce_pp_of_token_rewards_skips_masked_tokens():
    rewards = rows([0.5, NAN, 0.0, 1.0], [0.0, -1.0, NAN, 9.0])
    returns = torch.tensor(
        [0.5 + 0.9 * 0.9 * 1.0, 0.9, 1.0, -0.9, -1.0], dtype=torch.float64
    )  # discounts count the kept tokens
    out = F.reinforce_pp_token_advantages(rewards, MASKED, gamma=0.9, eps=0.0)
    assert out[MASKED > 0].tolist() == pytest.approx(((returns - returns.mean()) / returns.std()).tolist())
    assert out[MASKED == 0].tolist() == [0.0] * 3


@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0])])
def test_reinforce_pp_of_outcomes_is_that_of_token_rewards(groups):
    outcome, mask = rows(1.0, 0.0), MASKED
    expected = F.reinforce_pp_advantages(outcome, mask.sum(-1), groups)
    out = F.reinforce_pp_token_advantages(F.token_rewards(outcome, mask), mask, groups)
    assert torch.allclose(out, torch.where(mask > 0, expected[:, None], 0.0))
    assert F.reinforce_pp_token_advantages(torch.zeros(2, 4), mask).abs().sum() == 0


def test_remax_of_token_rewards():
    out = F.remax_advantages(
        rows([0.5, NAN, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]), rows(0.75, 1.0), MASKED, gamma=0.5
    )
    assert out[0].tolist() == pytest.approx([0.5 + 0.25 - 0.75, 0.0, 0.5 - 0.75, 0.25]) and out[
        1
    ].tolist() == pytest.approx([-0.5, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="baseline_B has 1 rows, reward_BT 2"):
        F.remax_advantages(torch.zeros(2, 4), torch.zeros(1), MASKED)


def test_masked_tokens_change_no_advantage():
    """GAE and whitening of a sequence with a tool's tokens inside are those of the sequence without them."""
    rewards, values = rows([0.1, 9.0, 0.0, 1.0]), rows([0.3, -7.0, 0.2, 0.6])
    mask, kept = torch.tensor([[1, 0, 1, 1]]), [0, 2, 3]
    advantages, targets = F.gae(rewards, values, mask, gamma=0.9, lam=0.8)
    alone, alone_targets = F.gae(rewards[:, kept], values[:, kept], gamma=0.9, lam=0.8)
    assert (
        torch.equal(advantages[:, kept], alone)
        and torch.equal(targets[:, kept], alone_targets)
        and advantages[0, 1] == 0
    )
    assert torch.equal(F.whiten(advantages, mask)[:, kept], F.whiten(alone))
