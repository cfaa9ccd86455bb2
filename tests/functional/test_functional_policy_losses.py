"""Policy losses on tensors: numbers by hand, gradients against independent formulas, limit cases, padding,
refusals."""

from math import exp, log

import pytest
import torch

import vlrl.functional as F

LOSSES = {
    "reinforce": lambda logp, old, a, mask: F.reinforce_loss(logp, a, mask),
    "ppo": F.ppo_clip_loss,
    "dapo": lambda *x: F.ppo_clip_loss(*x, low=0.2, high=0.28, dual_clip=3.0),
    "gspo": lambda *x: F.gspo_loss(*x, low=0.2, high=0.3),
    "gspo_token": lambda *x: F.gspo_token_loss(*x, low=0.2, high=0.3),
    "cispo": F.cispo_loss,
    "dppo_tv": F.dppo_loss,
    "dppo_kl": lambda *x: F.dppo_loss(*x, divergence="kl", low=0.05, high=0.05),
    "gmpo": F.gmpo_loss,
    "sapo": F.sapo_loss,
    "vespo": F.vespo_loss,
    "cpgd": F.cpgd_loss,
    "mirror_descent": F.mirror_descent_loss,
}
ALL = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def moved(*ratios):
    """(log-probs, old log-probs) of one sequence with these token ratios."""
    return row(*(-1 + log(r) for r in ratios)).requires_grad_(), row(*[-1.0] * len(ratios))


def batch(B=4, T=5, spread=0.4):
    logp = -2 * torch.rand(B, T, dtype=torch.float64)
    mask = torch.arange(T)[None] < torch.tensor([5, 3, 1, 4])[:B, None]
    return (
        logp.clone().requires_grad_(),
        logp + spread * torch.randn(B, T, dtype=torch.float64),
        torch.randn(B, dtype=torch.float64),
        mask,
    )


def gradient(out, logp, mask=None):
    """d sum of the masked loss / d log-probs."""
    loss = out.loss if mask is None or out.loss.dim() == 1 else torch.where(mask, out.loss, 0.0)
    return torch.autograd.grad(loss.sum(), logp)[0]


def test_reinforce():
    logp = row(-1.0, -2.0).requires_grad_()
    out = F.reinforce_loss(logp, torch.tensor([3.0]))
    assert out.loss.tolist() == [[3.0, 6.0]] and gradient(out, logp).tolist() == [[-3.0, -3.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.5, 2.0, -2.4, 0.0),
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),
        (1.5, -2.0, 3.0, 3.0),
        (1.1, 2.0, -2.2, -2.2),
    ],
)
def test_ppo_by_hand(ratio, advantage, loss, slope):
    logp, old = moved(ratio)
    out = F.ppo_clip_loss(logp, old, torch.tensor([advantage]), None, 0.2, 0.2)
    assert out.loss.item() == pytest.approx(loss)
    assert gradient(out, logp).item() == pytest.approx(slope)
    assert out.metrics["clip_fraction"].item() == float(slope == 0)


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    logp, old = moved(8.0, 2.0)
    out = F.ppo_clip_loss(logp, old, torch.tensor([-1.0]), dual_clip=3.0)
    assert out.loss[0].tolist() == pytest.approx([3.0, 2.0])
    assert gradient(out, logp)[0].tolist() == pytest.approx([0.0, 2.0])


def test_bounds_may_differ_between_tokens():
    logp, old = moved(2.0, 2.0)
    high = row(0.5, 2.0)
    assert F.ppo_clip_loss(logp, old, torch.tensor([1.0]), high=high).loss[0].tolist() == pytest.approx(
        [-1.5, -2.0]
    )


def test_gspo_uses_the_geometric_mean_of_ratios():
    logp, old = moved(2.0, 0.5, 8.0)  # s = 8 ^ (1/3) = 2
    out = F.gspo_loss(logp, old, torch.tensor([1.0]), low=0.5, high=2.0)
    assert out.loss[0].tolist() == pytest.approx([-2.0] * 3)
    assert gradient(out, logp)[0].tolist() == pytest.approx([-2.0] * 3)  # 3 tokens, each 1/3 of s' = s
    assert gradient(F.gspo_loss(logp, old, torch.tensor([1.0])), logp).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("gspo", [F.gspo_loss, F.gspo_token_loss])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_gspo_of_one_token_is_ppo(gspo, advantage):
    for ratio in (0.5, 0.9, 1.0, 1.3, 4.0):
        logp, old = moved(ratio)
        a = torch.tensor([advantage])
        own, ppo = gspo(logp, old, a, None, 0.2, 0.25), F.ppo_clip_loss(logp, old, a, None, 0.2, 0.25)
        assert own.loss.item() == pytest.approx(ppo.loss.item())
        assert gradient(own, logp).item() == pytest.approx(gradient(ppo, logp).item())


def test_gspo_token_has_the_value_and_the_summed_gradient_of_gspo():
    logp, old, a, mask = batch()
    whole, token = F.gspo_loss(logp, old, a, mask, 0.5, 0.5), F.gspo_token_loss(logp, old, a, mask, 0.5, 0.5)
    assert torch.allclose(whole.loss[mask], token.loss[mask])
    assert torch.allclose(gradient(whole, logp, mask), gradient(token, logp, mask))


def test_gspo_token_gives_every_token_its_own_advantage():
    logp, old = moved(1.0, 1.0)
    out = F.gspo_token_loss(logp, old, row(1.0, -2.0))
    assert gradient(out, logp).tolist() == [[-1.0, 2.0]]


def test_cispo_keeps_the_gradient_of_bounded_tokens():
    logp, old = moved(8.0, 1.5)
    out = F.cispo_loss(logp, old, torch.tensor([2.0]), high=4.0)
    assert gradient(out, logp)[0].tolist() == pytest.approx([-10.0, -3.0])
    assert out.metrics["clip_fraction"].tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("name", ["ppo", "dapo", "gspo_token", "cispo", "sapo", "vespo", "cpgd"])
def test_on_the_old_policy_the_gradient_is_that_of_reinforce(name):
    logp, _, a, mask = batch()
    old = logp.detach()
    expected = gradient(F.reinforce_loss(logp, a, mask), logp, mask)
    assert torch.allclose(gradient(LOSSES[name](logp, old, a, mask), logp, mask), expected)


def test_cispo_on_the_old_policy_is_reinforce_bit_by_bit():
    logp, _, a, mask = batch()
    assert torch.equal(F.cispo_loss(logp, logp, a, mask).loss, F.reinforce_loss(logp, a, mask).loss)


@pytest.mark.parametrize(
    ("advantage", "expected"), [(2.0, -2 * exp((0.4 + log(0.5)) / 2)), (-2.0, 2 * exp((log(3) - 0.4) / 2))]
)
def test_gmpo_clips_tokens_and_takes_the_geometric_mean(advantage, expected):
    logp, old = moved(3.0, 0.5)  # A > 0 clips 3 to e^0.4; A < 0 clips 0.5 to e^-0.4
    out = F.gmpo_loss(logp, old, torch.tensor([advantage]))
    assert out.loss[0].tolist() == pytest.approx([expected] * 2)
    slope = [0.0, expected] if advantage > 0 else [expected, 0.0]
    assert gradient(out, logp)[0].tolist() == pytest.approx(slope)  # 2 tokens, each half of the mean's slope


@pytest.mark.parametrize(("advantage", "tau"), [(1.0, 1.0), (-1.0, 1.05)])
def test_sapo_gradient_is_a_logistic_density(advantage, tau):
    logp, old = moved(1.7)
    out = F.sapo_loss(logp, old, torch.tensor([advantage]))
    gate = 1 / (1 + exp(-tau * 0.7))
    assert out.loss.item() == pytest.approx(-advantage * 4 / tau * gate)
    assert gradient(out, logp).item() == pytest.approx(-advantage * 4 * gate * (1 - gate) * 1.7)


def test_vespo_weighs_by_the_whole_sequence():
    logp, old = moved(2.0, 0.75)  # w = 1.5
    out = F.vespo_loss(logp, old, torch.tensor([1.0]))
    phi = 1.5**2 * exp(3 * (1 - 1.5))
    assert gradient(out, logp)[0].tolist() == pytest.approx([-phi, -phi])
    assert gradient(F.vespo_loss(logp, old, torch.tensor([-1.0])), logp)[0, 0].item() == pytest.approx(
        1.5**3 * exp(2 * -0.5)
    )


def test_cpgd_clips_the_log_ratio():
    logp, old = moved(2.0, 1.1)
    out = F.cpgd_loss(logp, old, torch.tensor([2.0]), eps=0.2)
    assert out.loss[0].tolist() == pytest.approx([-2 * log(1.2), -2 * log(1.1)])
    assert gradient(out, logp).tolist() == [[0.0, -2.0]]


def test_mirror_descent_gradient():
    """grad = -(A - tau (log pi - log pi_old)(y)) grad log pi(y), for every token of the sequence."""
    logp, old, a, mask = batch()
    out = F.mirror_descent_loss(logp, old, a, mask, tau=0.3)
    drift = torch.where(mask, logp - old, 0.0).sum(-1)
    assert out.loss.shape == (4,)
    assert torch.allclose(gradient(out, logp), (-(a - 0.3 * drift))[:, None] * mask)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ppo_gradient_against_its_definition_by_cases(sign):
    logp, old, a, mask = batch(spread=1.0)
    advantage = sign * a.abs()
    out = F.ppo_clip_loss(logp, old, advantage, mask, 0.1, 0.3)
    ratio = (logp - old).detach().exp()
    live = (ratio < 1.3) if sign > 0 else (ratio > 0.9)
    assert torch.allclose(
        gradient(out, logp, mask), torch.where(mask & live, -ratio * advantage[:, None], 0.0)
    )
    fractions = F.clip_fractions(ratio, advantage, mask, 0.1, 0.3)
    assert fractions["clip_fraction"].item() == pytest.approx((~live & mask).sum().item() / mask.sum().item())


@pytest.mark.parametrize(
    "name", sorted(set(LOSSES) - {"cispo", "vespo", "gspo_token", "dppo_tv", "dppo_kl"})
)  # these hold a factor fixed
def test_gradients_are_those_of_finite_differences(name):
    loss = LOSSES[name]
    logp, old, a, mask = batch()
    assert torch.autograd.gradcheck(lambda x: loss(x, old, a, mask).loss.sum(), (logp,))


@ALL
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_what_stands_outside_the_mask_reaches_nothing(loss, garbage):
    logp, old, a, mask = batch()
    advantage = a[:, None].expand_as(logp)
    clean = loss(logp, old, advantage, mask)
    dirty_logp = torch.where(mask, logp.detach(), garbage).requires_grad_()
    dirty = loss(dirty_logp, torch.where(mask, old, garbage), torch.where(mask, advantage, garbage), mask)
    assert torch.equal(dirty.loss, clean.loss)
    if dirty.loss.dim() == 2:
        assert (dirty.loss[~mask] == 0).all()
    (own,) = torch.autograd.grad(F.aggregate(dirty.loss, mask), dirty_logp)
    assert torch.equal(own, torch.autograd.grad(F.aggregate(clean.loss, mask), logp)[0])
    assert (own[~mask] == 0).all()


@ALL
def test_padding_and_batch_neighbours_do_not_matter(loss):
    logp, old, a, mask = batch()
    whole = loss(logp, old, a, mask).loss
    for b, length in enumerate((5, 3, 1, 4)):
        alone = loss(logp[b : b + 1, :length], old[b : b + 1, :length], a[b : b + 1], None).loss
        assert torch.allclose(
            alone[0], whole[b, :length] if whole.dim() == 2 else whole[b], rtol=1e-12, atol=1e-12
        )


@ALL
def test_gradients_flow_through_the_policys_log_probs_only(loss):
    logp, old, a, mask = batch()
    old.requires_grad_(), a.requires_grad_()
    out = loss(logp, old, a, mask)
    out.loss.sum().backward()
    assert logp.grad is not None and old.grad is None and a.grad is None
    assert not any(value.requires_grad for value in out.metrics.values())


@ALL
def test_masks_of_bools_numbers_and_none_agree(loss):
    logp, old, a, mask = batch()
    assert torch.equal(loss(logp, old, a, mask.float()).loss, loss(logp, old, a, mask).loss)
    assert torch.equal(loss(logp, old, a, None).loss, loss(logp, old, a, torch.ones_like(mask)).loss)
    assert torch.equal(loss(logp, old, a[:, None].expand_as(logp), mask).loss, loss(logp, old, a, mask).loss)


@ALL
def test_a_sequence_without_tokens_is_harmless(loss):
    logp, old, a, mask = batch()
    mask = mask.clone()
    mask[2] = False
    out = loss(logp, old, a, mask)
    assert torch.isfinite(out.loss).all() and (out.loss[2] == 0).all()
    assert torch.isfinite(gradient(out, logp, mask)).all()


@ALL
def test_wrong_shapes_are_named(loss):
    logp, old, a, mask = batch()
    with pytest.raises(
        ValueError, match=r"advantages has shape \(3,\); it must be \(B, T\) = \(4, 5\), or \(B,\)"
    ):
        loss(logp, old, a[:3], mask)
    with pytest.raises(
        ValueError, match=r"mask_BT has shape \(4, 4\), logp_BT \(4, 5\); both must be \(B, T\)"
    ):
        loss(logp, old, a, mask[:, :4])
    with pytest.raises(ValueError, match=r"logp_BT has shape \(5,\); it must be \(B, T\)"):
        loss(logp[0], old[0], a, None)


def test_wrong_settings_are_named():
    logp, old, a, mask = batch()
    with pytest.raises(ValueError, match=r"dual_clip=1\.0 must be above 1"):
        F.ppo_clip_loss(logp, old, a, mask, dual_clip=1.0)
    with pytest.raises(ValueError, match=r"eps=1\.5 must be in \(0, 1\)"):
        F.cpgd_loss(logp, old, a, mask, eps=1.5)
    with pytest.raises(ValueError, match=r"old_logp_BT has shape \(4, 4\), logp_BT \(4, 5\)"):
        F.ppo_clip_loss(logp, old[:, :4], a, mask)


def test_float32_keeps_its_dtype():
    logp, old, a, mask = (x.float() if x.is_floating_point() else x for x in batch())
    for name, loss in LOSSES.items():
        assert loss(logp, old, a, mask).loss.dtype == torch.float32, name


def coins(*pairs):
    """(log pi, log pi_old) of tokens from pairs of probabilities."""
    return tuple(torch.tensor([column], dtype=torch.float64).log() for column in zip(*pairs))


@pytest.mark.parametrize(
    ("divergence", "limit", "held"),
    # |pi - pi_old| = 0.4, 0.004, 0.4; KL of the coins: 0.5 log(5/9) + 0.5 log 5 = 0.511; 0.001 log(1/5) +
    # 0.999 log(999/995) = 0.0024; 0.511
    [
        ("tv", 0.15, [True, False, False]),
        ("kl", 0.05, [True, False, False]),
        ("tv", 0.003, [True, True, False]),
        ("kl", 0.002, [True, True, False]),
        ("tv", 0.41, [False, False, False]),
        ("kl", 0.52, [False, False, False]),
    ],
)
def test_dppo_holds_what_moved_too_far_along_the_advantage(divergence, limit, held):
    """A rare token whose probability is multiplied by five has moved little; PPO's ratio clip would hold
    it."""
    logp, old = coins((0.9, 0.5), (0.005, 0.001), (0.1, 0.5))
    own = logp.requires_grad_()
    loss, metrics = F.dppo_loss(own, old, torch.tensor([1.0]), None, divergence, limit, limit, cap=4.0)
    (gradient,) = torch.autograd.grad(loss.sum(), own)
    ratios = [0.9 / 0.5, 4.0, 0.1 / 0.5]  # the second is capped
    assert gradient[0].tolist() == pytest.approx([0.0 if h else -r for h, r in zip(held, ratios)])
    assert metrics["clip_fraction"][0].tolist() == [float(h) for h in held]
    mirrored = F.dppo_loss(own, old, torch.tensor([-1.0]), None, divergence, limit, limit)
    assert mirrored.metrics["clip_low"][0].tolist() == [0.0, 0.0, float(held[0])]


def test_the_dual_clip_is_counted_apart():
    ratios, advantages = row(5.0, 2.0, 5.0), row(-1.0, -1.0, 1.0)
    loss, metrics = F.clipped_ratio_loss(ratios, advantages, 0.2, 0.2, dual_clip=3.0)
    assert loss[0].tolist() == pytest.approx([3.0, 2.0, -1.2]) and metrics["dual_clip_fraction"][
        0
    ].tolist() == [1.0, 0.0, 0.0]
    assert "dual_clip_fraction" not in F.clipped_ratio_loss(ratios, advantages, 0.2, 0.2).metrics


def test_the_kl_of_the_step_is_logged():
    """ppo_kl is log pi_old - log pi: its mean over tokens of pi_old is KL(pi_old || pi)."""
    old, new = (
        torch.tensor([0.7, 0.3], dtype=torch.float64).log(),
        torch.tensor([0.5, 0.5], dtype=torch.float64).log(),
    )
    kl = F.ppo_clip_loss(new[None], old[None], torch.tensor([1.0])).metrics["ppo_kl"][0]
    assert (old.exp() * kl).sum().item() == pytest.approx(0.7 * log(1.4) + 0.3 * log(0.6))
