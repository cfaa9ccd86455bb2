"""Engine-trainer mismatch: corrections and metrics, against values by hand."""

import math

import pytest
import torch

from vlrl.methods.core.callback import EngineMismatch
from vlrl.methods.core.token_weight import TIS, IcePop
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import TokenWeight
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, LossInputs, Prompt, Rollout, Row

LOG2 = math.log(2)


def make_inputs(old, sampled, masks=None, sources=None):
    """LossInputs of rollouts of equal length."""
    prompt = Prompt(row=Row(id="a", question="q"), messages=())
    rollouts = [
        Rollout(
            prompt=prompt,
            ids=[1] * len(row),
            logp=list(row),
            loss_mask=masks[b] if masks else None,
            source=sources[b] if sources else "policy",
        )
        for b, row in enumerate(sampled)
    ]
    batch = make_batch([Group(prompt=prompt, rollouts=rollouts)], 0)
    old_BT, zeros_B = torch.tensor(old), torch.zeros(len(old))
    return LossInputs(
        batch=batch, logp_BT=old_BT, old_logp_BT=old_BT, sampled_logp_BT=torch.tensor(sampled),
        advantage_BT=old_BT, reward_B=zeros_B,
        mask_BT=batch.loss_mask_BT.float(), group_B=zeros_B.long(),
    )  # fmt: skip


OLD = [[-1.0, -1.0], [-1.0, -1.0]]
SAMPLED = [[-1.0 - 2 * LOG2, -1.0], [-1.0 + LOG2, -1.0 - 2 * LOG2]]  # ratios [[4, 1], [1/2, 4]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[2, 1], [0.5, 2]]),
        ({"cap": 0.0}, [[4, 1], [0.5, 4]]),
        ({"mode": "mask", "cap": 3.0}, [[0, 1], [0.5, 0]]),
        ({"mode": "mask", "cap": 5.0, "floor": 0.6}, [[4, 1], [0, 4]]),
        ({"level": "sequence", "cap": 3.0}, [[3], [2]]),
        ({"level": "sequence", "mode": "mask", "cap": 3.0}, [[0], [2]]),
        ({"level": "geometric", "cap": 1.5}, [[1.5], [math.sqrt(2)]]),
        ({"level": "geometric", "mode": "mask", "cap": 1.5}, [[0], [math.sqrt(2)]]),
    ],
)
def test_tis(settings, expected):
    weight = TIS(**settings)(make_inputs(OLD, SAMPLED))
    torch.testing.assert_close(weight, torch.tensor(expected, dtype=torch.float32))


def test_icepop():
    torch.testing.assert_close(
        IcePop(low=0.6, high=3.9)(make_inputs(OLD, SAMPLED)), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    )
    torch.testing.assert_close(IcePop()(make_inputs(OLD, SAMPLED)), torch.tensor([[4.0, 1.0], [0.5, 4.0]]))


def test_masked_tokens_and_other_sources_have_weight_one():
    x = make_inputs(OLD, SAMPLED, masks=[[False, True], [True, True]], sources=["policy", "expert"])
    torch.testing.assert_close(TIS(cap=0.0)(x), torch.ones(2, 2))
    torch.testing.assert_close(TIS(level="sequence", cap=0.0)(x), torch.ones(2, 1))


def test_no_mismatch_is_one_and_infinities_stay_finite():
    assert (TIS(level="sequence")(make_inputs(OLD, OLD)) == 1).all() and (
        IcePop()(make_inputs(OLD, OLD)) == 1
    ).all()
    wild = TIS(level="sequence", cap=0.0)(make_inputs([[-1.0] * 2], [[-500.0] * 2]))
    assert torch.isfinite(wild).all()


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("tis", {"cap": -1.0}),
        ("tis", {"cap": 1.0, "floor": 2.0}),
        ("tis", {"level": "word"}),
        ("tis", {"by_length": True}),
        ("tis", {"level": "sequence", "cap": 0.9, "by_length": True}),
        ("tis", {"level": "sequence", "floor": 1.1, "by_length": True}),
        ("icepop", {"low": 6.0}),
    ],
)
def test_refused(name, bad):
    with pytest.raises(ConfigError, match=list(bad)[-1]):
        build(TokenWeight, {"name": name, **bad})


def test_mismatch_numbers():
    prompt = Prompt(row=Row(id="a", question="q"), messages=())
    first = Rollout(prompt=prompt, ids=[1, 2], logp=[-1.0 - LOG2, -1.0], signals={"old_logp": [-1.0, -1.0]})
    second = Rollout(
        prompt=prompt,
        ids=[1, 2],
        logp=[-1.0, -3.0],
        signals={"old_logp": [-1.0, -1.0]},
        loss_mask=[True, False],
    )
    expert = Rollout(prompt=prompt, ids=[1], logp=[0.0], signals={"old_logp": [-9.0]}, source="expert")
    numbers = EngineMismatch()(None, [Group(prompt=prompt, rollouts=[first, second, expert])])
    assert numbers["mean"] == pytest.approx(LOG2 / 3) and numbers["max"] == pytest.approx(LOG2)
    assert numbers["kl"] == pytest.approx((2 - 1 - LOG2) / 3)
    assert numbers["ess"] == pytest.approx(16 / (3 * 6)), "weights 2, 1, 1"
    assert numbers["seq_ess"] == pytest.approx(9 / (2 * 5)), "weights 2, 1"
    assert EngineMismatch()(None, [Group(prompt=prompt, rollouts=[expert])]) == {}
