"""Rewards for length, and the loss mask of truncated completions: DAPO's overlong penalty and filtering,
Kimi's length reward.

Shape legend: B rollouts, T tokens.
"""

from __future__ import annotations

from vlrl.functional.checks import check_groups, check_shapes
from vlrl.services.lazy import Tensor, torch


def overlong_penalty(length_B: Tensor, limit: float, buffer: float) -> Tensor:
    """DAPO's soft overlong punishment, to be added to the reward.

        p = 0 for n <= limit - buffer,  -(n - (limit - buffer)) / buffer up to the limit,  -1 beyond

    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13 (limit 20480, buffer 4096).

    Args:
        length_B: (B,) lengths n in tokens.
        limit: the length from which on the penalty is -1.
        buffer: tokens before the limit over which the penalty grows; above 0, at most the limit.

    Returns:
        (B,) penalties in [-1, 0]; float64, or the dtype of a floating `length_B`.

    Raises:
        ValueError: for a tensor that is no vector, or unless 0 < buffer <= limit.

    >>> overlong_penalty(torch.tensor([10, 90, 200]), limit=100, buffer=20)
    tensor([-0.0000, -0.5000, -1.0000], dtype=torch.float64)
    """
    check_shapes("B", length_B=length_B)
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer={buffer} must be above 0 and at most limit={limit}")
    n_B = length_B if length_B.is_floating_point() else length_B.double()
    return -((n_B - limit + buffer) / buffer).clamp(0.0, 1.0)


def overlong_mask(mask_BT: Tensor, truncated_B: Tensor) -> Tensor:
    """Overlong filtering: the loss mask without the completions that were cut off at the length limit.

    Their rewards are noise: the answer may have been on its way. They still count in the baseline of their
    group.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, sec. 3.4; mask_truncated_completions of TRL f2cd5771
    (trl/trainer/grpo_trainer.py).

    Args:
        mask_BT: (B, T) 1 or True on trained tokens.
        truncated_B: (B,) bool: the completion has no end.

    Returns:
        (B, T) in the dtype of the mask.

    Raises:
        ValueError: for another number of rows.

    >>> overlong_mask(torch.tensor([[1, 1], [1, 0]]), torch.tensor([True, False]))
    tensor([[0, 0],
            [1, 0]])
    """
    check_shapes("BT", mask_BT=mask_BT)
    if truncated_B.shape != mask_BT.shape[:1]:
        raise ValueError(
            f"truncated_B has shape {tuple(truncated_B.shape)}, mask_BT {tuple(mask_BT.shape)}; both must "
            "have one row per sequence"
        )
    return torch.where(truncated_B[:, None].bool(), torch.zeros_like(mask_BT), mask_BT)


def kimi_length_reward(length_B: Tensor, correct_B: Tensor, group_B: Tensor) -> Tensor:
    """Kimi k1.5's length reward, to be added to the reward: shorter is better among the correct rollouts of a
    prompt.

        l = 0.5 - (n - min n) / (max n - min n), min and max over the group; a wrong rollout gets min(0, l)

    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.3.

    Args:
        length_B: (B,) lengths n in tokens.
        correct_B: (B,) bool.
        group_B: (B,) integer prompt ids.

    Returns:
        (B,) rewards in [-0.5, 0.5]; 0 in a group of equal lengths; float64, or the dtype of a floating
        `length_B`.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> kimi_length_reward(torch.tensor([10, 20, 10]), torch.tensor([True, True, False]), torch.tensor([0, 0,
    ... 0]))
    tensor([ 0.5000, -0.5000,  0.0000], dtype=torch.float64)
    """
    check_groups(group_B)
    check_shapes("B", group_B=group_B, length_B=length_B, correct_B=correct_B)
    n_B = length_B if length_B.is_floating_point() else length_B.double()
    out_B = torch.zeros_like(n_B)
    for group in group_B.unique():
        rows = group_B == group
        n = n_B[rows]
        shortest, spread = n.min(), n.max() - n.min()
        if spread > 0:
            bonus = 0.5 - (n - shortest) / spread
            out_B[rows] = torch.where(correct_B[rows].bool(), bonus, bonus.clamp(max=0.0))
    return out_B
