"""Losses that are not policy gradients: PACS, NFT, TRPA, Kimi's mirror descent, ROVER."""

from math import exp, log

import pytest
import torch
from make import gradient, group, inputs

from vlrl.methods.core.loss_term import TrustRegion
from vlrl.methods.papers.kimi_k1_5 import KimiK15
from vlrl.methods.papers.nft import NFT
from vlrl.methods.papers.pacs import PACS
from vlrl.methods.papers.rover import Rover
from vlrl.methods.papers.trpa import TRPA, TRPAPairs


def softplus(z):
    return log(1 + exp(z))


def three(**kwargs):
    """One group of three; summed log-ratios 0.6, 0.2 and -0.2."""
    return inputs(
        [[-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]],
        old=[[-1.3, -1.3], [-1.1, -1.1], [-0.9, -0.9]],
        reward=[1.0, 0.0, 0.0],
        **kwargs,
    )


def test_pacs_by_hand():
    # psi: 0.6 - 0, 0.2 - 0.2, -0.2 - 0.4
    loss = PACS()(three()).loss.tolist()
    assert loss == pytest.approx([softplus(-0.6), softplus(0.0), softplus(-0.6)])


def test_pacs_on_policy_pushes_right_up_and_wrong_down():
    x = inputs([[-1.0], [-2.0]], reward=[1.0, 0.0])
    grad = gradient(PACS()(x).loss, x)[
        :, 0
    ].tolist()  # d(loss_0 + loss_1)/dp_0 = -1/2 - 1/2, since psi_1 = -psi_0
    assert grad == pytest.approx([-1.0, 1.0])


def test_pacs_options():
    assert PACS(length_normalised=True)(three()).loss[0].item() == pytest.approx(softplus(-0.3))
    balanced = PACS(balance=True)(three()).loss.tolist()  # weights 1 / (2/3) and 1 / (4/3)
    assert balanced == pytest.approx([1.5 * softplus(-0.6), 0.75 * log(2), 0.75 * softplus(-0.6)])
    x = inputs([[-1.0]] * 2, old=[[-1.5], [-1.0]], reward=[1.0, 1.0])  # one kind alone: weight 1
    assert PACS(balance=True)(x).loss.tolist() == pytest.approx([softplus(-0.5), softplus(0.5)])
    z = PACS(score="grpo")(three()).metrics["psi"].tolist()  # (0.4, 0, -0.4) / 0.4
    assert z == pytest.approx([1.0, 0.0, -1.0], abs=1e-4)
    alone = inputs([[-1.0]], old=[[-1.5]], reward=[1.0])
    assert PACS()(alone).loss.item() == pytest.approx(softplus(-0.5))


def test_pacs_keeps_groups_apart():
    both = inputs(
        [[-1.0]] * 4, old=[[-1.5], [-1.0], [-3.0], [-1.0]], reward=[1.0, 0.0, 1.0, 0.0], group_of=[0, 0, 1, 1]
    )
    assert PACS()(both).loss[:2].tolist() == pytest.approx([softplus(-0.5), softplus(-0.5)])


def test_nft_by_hand():
    # q = 1/2. right: -log 1.2; wrong: R = 1.5 -> (1 - 0.75) / 0.5 = 0.5, floored at 0.25; R = 0.5 -> 1.5
    x = inputs([[log(1.2), 0.0], [log(1.5), log(0.5)]], old=[[0.0, 0.0], [0.0, 0.0]], reward=[1.0, 0.0])
    loss = NFT(eps=0.25)(x).loss
    assert loss[0].tolist() == pytest.approx([-0.5 * log(1.2), 0.0], abs=1e-12)
    assert loss[1].tolist() == pytest.approx([-0.5 * log(0.5), -0.5 * log(1.5)])
    assert NFT(eps=1.0)(x).loss[1].tolist() == pytest.approx([0.0, -0.5 * log(1.5)], abs=1e-12)


def test_nft_on_policy_is_grpo_without_std():
    x = inputs([[-1.0]] * 4, reward=[1.0, 0.0, 0.0, 0.0])  # q = 1/4
    assert gradient(NFT()(x).loss, x)[:, 0].tolist() == pytest.approx([-0.75, 0.25, 0.25, 0.25])
    rejection = NFT(negative=0.0)(x).loss
    assert gradient(rejection, x)[:, 0].tolist() == pytest.approx([-0.75, 0.0, 0.0, 0.0])


def test_nft_floor_keeps_a_gradient():
    x = inputs(
        [[0.0], [log(1.9)]], old=[[0.0], [0.0]], reward=[1.0, 0.0]
    )  # implicit (1 - 0.95) / 0.5 = 0.1, floored at 1
    assert gradient(NFT()(x).loss, x)[1, 0].item() == pytest.approx(0.5 * 0.95 / 0.5)


@pytest.mark.parametrize("rewards", [[1.0, 1.0], [0.0, 0.0]])
def test_nft_leaves_groups_without_contrast(rewards):
    x = inputs([[-1.0], [-2.0]], old=[[-1.5], [-1.0]], reward=rewards)
    assert NFT()(x).loss.abs().max() == 0 and gradient(NFT()(x).loss, x).abs().max() == 0


def test_nft_sqrt_weight():
    x = inputs([[-1.0]] * 4, reward=[1.0, 0.0, 0.0, 0.0])
    assert gradient(NFT(prompt_weight="sqrt")(x).loss, x)[0, 0].item() == pytest.approx(-(3**0.5))


def test_trpa_by_hand():
    # s = 0.3, 0.1, -0.1; one right rollout, two pairs, both with beta 2.5
    x = three(ref_logp=[[-1.3, -1.3], [-1.1, -1.1], [-0.9, -0.9]])
    value = (softplus(-2.5 * 0.2) + softplus(-2.5 * 0.4)) / 2
    assert TRPA()(x).loss.tolist() == pytest.approx([value] * 3)
    assert TRPA()(x).metrics["pairs"].tolist() == [2, 2, 2]


def test_trpa_levels_below_right_use_plain_beta():
    x = inputs([[-1.0], [-1.0]], reward=[0.2, 0.0], ref_logp=[[-1.5], [-1.0]])
    assert TRPA(beta=2.0)(x).loss[0].item() == pytest.approx(softplus(-1.0))


def test_trpa_is_the_mean_over_all_pairs_of_a_step():
    """core_algos.py, compute_pairwise_policy_loss: h_list holds the pairs of every prompt, and rollouts stand
    for themselves only where it is empty."""
    rewards, s = (
        [1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0],
        [0.3, 0.1, -0.1, 0.4, 0.2, -0.3, 0.5, 0.6, 0.7],
    )
    groups = [group(*rewards[i : i + 3], name=f"q{i}") for i in (0, 3, 6)]
    shares = [share for row in TRPAPairs()(groups) for share in row]
    assert shares == pytest.approx([2 * 9 / (3 * 5)] * 3 + [3 * 9 / (3 * 5)] * 3 + [0.0] * 3)
    x = inputs(
        [[-1.0]] * 9, reward=rewards, group_of=[0] * 3 + [1] * 3 + [2] * 3, advantage=shares,
        ref_logp=[[-1.0 - value] for value in s],
    )  # fmt: skip
    pairs = [softplus(-2.5 * gap) for gap in (0.2, 0.4, 0.2, 0.7)] + [softplus(-0.5)]
    loss = TRPA()(x).loss
    assert loss.mean().item() == pytest.approx(sum(pairs) / 5)
    assert gradient(loss, x)[6:].abs().max() == 0, "a prompt without levels says nothing beside others"


def test_trpa_shares_of_a_step_without_pairs():
    assert TRPAPairs()([group(0.0, 0.0), group(1.0, 1.0, 1.0)]) == [[1.0] * 2, [1.0] * 3]


def test_trpa_without_pairs_falls_back():
    x = inputs([[-1.0], [-1.0]], reward=[0.0, 0.0], ref_logp=[[-1.5], [-1.5]])
    assert TRPA()(x).loss[0].item() == pytest.approx(softplus(0.5))
    assert gradient(TRPA()(x).loss, x).min() > 0  # wrong ones are pushed down


def test_trust_region_reads_the_old_policy():
    x = inputs([[-1.0]], old=[[-1.5]], old_logp=[[-1.5]])
    k3 = exp(-0.5) - 1 + 0.5
    assert TrustRegion()(x).loss.item() == pytest.approx(k3) and TrustRegion(root=True)(
        x
    ).loss.item() == pytest.approx(k3**0.5)
    same = inputs([[-1.0]], old_logp=[[-1.0]])
    assert gradient(TrustRegion(root=True)(same).loss, same).abs().max() < 1e-6


def test_mirror_descent():
    x = inputs([[-1.0, -2.0]], old=[[-1.5, -2.0]], advantage=0.7)
    out = KimiK15(tau=0.2)(x)
    assert out.loss.item() == pytest.approx(0.7 * 3.0 + 0.1 * 0.25)
    assert gradient(out.loss, x)[0].tolist() == pytest.approx([-0.7 + 0.2 * 0.5] * 2)


def vocab_means(now, old):
    """The aux tensors of ROVER."""
    return {"rover.vocab_mean": now, "rover.old_vocab_mean": old}


def test_rover_by_hand():
    # Q = (0.5, -0.25); V_2 = 0.1 - 0.4; targets: 0.2 + V_2, 0.2
    x = inputs([[-1.0, -1.25]], old=[[-1.5, -1.0]], advantage=0.2, **vocab_means([[9.0, 0.1]], [[3.0, 0.4]]))
    assert Rover()(x).loss[0].tolist() == pytest.approx([(0.5 - 0.2 + 0.3) ** 2, (-0.25 - 0.2) ** 2])


def test_rover_on_policy_gradient():
    x = inputs([[-1.0, -1.0]], advantage=0.3, **vocab_means([[-2.0, -3.0]], [[-2.0, -3.0]]))
    assert gradient(Rover(rho=2.0)(x).loss, x)[0].tolist() == pytest.approx([-2 * 2 * 0.3] * 2)
    with pytest.raises(ValueError, match="rho"):
        Rover(rho=0)


def test_rover_does_not_look_past_the_end():
    x = inputs([[-1.0, -1.0]], lengths=[1], advantage=0.0, **vocab_means([[0.0, 5.0]], [[0.0, 0.0]]))
    assert Rover()(x).loss[0, 0].item() == 0.0 and torch.isfinite(Rover()(x).loss).all()
