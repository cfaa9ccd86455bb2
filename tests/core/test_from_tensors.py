"""LossInputs.from_tensors: a loss plug-in called with tensors alone."""

import pytest
import torch

import vlrl.functional as F
from vlrl.plugins.registry import build
from vlrl.plugins.stages import LossTerm, PolicyLoss
from vlrl.types import LossInputs


def test_a_plug_in_runs_on_tensors():
    logp_BT = (-torch.rand(3, 4)).requires_grad_()
    old_BT, mask_BT = logp_BT.detach() - 0.3, torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]])
    x = LossInputs.from_tensors(
        logp_BT, torch.tensor([1.0, -1.0, 0.5]), mask_BT, old_logp_BT=old_BT, group_B=torch.tensor([0, 0, 1])
    )
    own = build(PolicyLoss, "ppo_clip")(x)
    assert torch.equal(
        own.loss, F.ppo_clip_loss(logp_BT, old_BT, torch.tensor([1.0, -1.0, 0.5]), mask_BT).loss
    )
    assert x.length_B.tolist() == [4, 2, 2] and [len(group) for group in x.batch.groups] == [2, 1]
    assert [len(rollout) for rollout in x.batch.rollouts] == [4, 2, 3]


def test_defaults_are_on_policy_and_one_group():
    logp_BT = (-torch.rand(2, 3)).requires_grad_()
    x = LossInputs.from_tensors(logp_BT, torch.ones(2, 3), aux_tensors={"ref_logp": logp_BT.detach()})
    assert (x.log_ratio_BT == 0).all() and x.group_B.tolist() == [0, 0] and x.reward_B.tolist() == [0, 0]
    assert build(LossTerm, "kl")(x).loss.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantages": torch.ones(3)}, r"advantages has shape \(3, 3\); it must be \(B, T\) = \(2, 3\)"),
        ({"mask_BT": torch.ones(2, 2)}, r"mask_BT has shape \(2, 2\)"),
        ({"reward_B": torch.ones(3)}, r"reward_B has shape \(3,\); it must be \(B,\) = \(2,\)"),
        ({"group_B": torch.tensor([0, 2])}, r"group_B=\[0, 2\] must rise from 0 without gaps"),
        ({"groups": []}, r"groups has \[\] rollouts per group, which group_B=\[0, 0\] does not say"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        LossInputs.from_tensors(**{"logp_BT": torch.zeros(2, 3), "advantages": torch.ones(2), **settings})
