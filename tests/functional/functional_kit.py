"""Loss inputs and groups for the comparison of plug-ins with functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vlrl.types import Group, LossInputs, Prompt, Rollout, Row, TokenBatch

LENGTHS = [5, 3, 1, 6, 2, 4]
SIZES = [3, 2, 1]


def groups() -> tuple[Tensor, Tensor, Tensor, list[Group]]:
    """(float64 rewards, lengths, group ids, groups) of six rollouts; slots "a" and "b" have raw scores."""
    rewards = torch.rand(6, dtype=torch.float64)
    group_B = torch.tensor([number for number, size in enumerate(SIZES) for _ in range(size)])
    made = []
    for number in range(len(SIZES)):
        prompt = Prompt(Row(id=f"q{number}", question="?"), messages=({"role": "user", "content": "?"},))
        rows = [b for b in range(6) if group_B[b] == number]
        rollouts = [
            Rollout(prompt, ids=[7] * LENGTHS[b], logp=[-1.0] * LENGTHS[b], reward=rewards[b].item())
            for b in rows
        ]
        for rollout in rollouts:
            rollout.rewards = dict(zip("ab", torch.rand(2, dtype=torch.float64).tolist()))
        made.append(Group(prompt, rollouts, id=f"q{number}"))
    return rewards, torch.tensor(LENGTHS), group_B, made


def inputs() -> LossInputs:
    """Loss inputs of the rollouts of `groups`, with masked tokens inside rollouts; the policy has moved."""
    reward_B, length_B, group_B, made = groups()
    padded_BT = torch.arange(6)[None] < length_B[:, None]
    mask_BT = (padded_BT & (torch.rand(6, 6) > 0.2)).float()
    batch = TokenBatch(
        made,
        [g.prompt for g in made],
        group_B,
        torch.zeros(6, 6, dtype=torch.long),
        padded_BT,
        mask_BT > 0,
        torch.ones(6, 6),
    )
    logp_BT = (-2 * torch.rand(6, 6)).requires_grad_()
    old_BT, sampled_BT, ref_BT = (logp_BT.detach() + 0.5 * torch.randn(6, 6) for _ in range(3))
    return LossInputs(
        batch,
        logp_BT,
        old_BT,
        sampled_BT,
        torch.randn(6, 6),
        reward_B.float(),
        mask_BT,
        group_B,
        {"ref_logp": ref_BT},
    )


def as_lists(values: Tensor, some: Sequence[Group]) -> list[list[float]]:
    """One list of numbers per group."""
    return [part.tolist() for part in values.split([len(group) for group in some])]
