"""Thought dropout, pre-clip and the 3-sigma filter, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from make import gradient, group, inputs

from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.papers.r1_reward import R1RewardPreClip, R1RewardSigmaFilter
from vlrl.methods.papers.ton import Ton
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row


def test_thoughts_are_dropped_by_share_and_by_row():
    rows = [Row(f"r{i}", "?", target=f"<think>because {i}</think><answer>{i}</answer>") for i in range(1000)]
    kept = Ton(share=0.5)(rows)
    empty = [row.target == f"<think>\n\n</think><answer>{i}</answer>" for i, row in enumerate(kept)]
    assert len(kept) == 1000 and 440 < sum(empty) < 560
    assert [row.target for row in Ton(share=0.5)(rows[::-1])][::-1] == [row.target for row in kept]
    assert all(row.target == old.target for row, old in zip(Ton(share=0.0)(rows), rows, strict=True))
    assert Ton(share=1.0)([Row("a", "?", target="<answer>1</answer>")])[0].target == "<answer>1</answer>"
    assert [row.id for row in kept[2:4]] == ["r2", "r3"]
    with pytest.raises(ConfigError, match="share"):
        Ton(share=2.0)


def test_pre_clip_bounds_the_ratio_and_else_is_ppo():
    x = inputs([[0.0, 0.1]], old=[[-20.0, 0.0]], advantage=-1.0)
    loss = R1RewardPreClip()(x).loss
    assert loss[0].tolist() == pytest.approx([1e3, math.exp(0.1)])
    assert gradient(loss, x)[0].tolist() == pytest.approx([0.0, math.exp(0.1)])
    usual = inputs([[0.3, -0.4]], old=[[0.0, 0.0]], advantage=1.0)
    torch.testing.assert_close(R1RewardPreClip()(usual).loss, PPOClip()(usual).loss)
    with pytest.raises(ValueError, match="floor"):
        R1RewardPreClip(floor=2.0)


def test_outliers_get_no_advantage():
    rewards = [0.0] * 19 + [1.0]  # the last lies sqrt(19) = 4.36 standard deviations off
    values = R1RewardSigmaFilter(eps=0.0)([group(*rewards)])[0]
    assert values[-1] == 0.0 and values[:19] == pytest.approx([-0.05 / (0.05 * 0.95) ** 0.5] * 19)
    assert R1RewardSigmaFilter()([group(1.0, 1.0)]) == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="sigma"):
        R1RewardSigmaFilter(sigma=0.0)
