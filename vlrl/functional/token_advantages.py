"""Advantages per token from rewards per token: REINFORCE++ and ReMax with a discount and dense rewards (GAE
is in `returns`).

Shape legend: B sequences, T tokens.
"""

from __future__ import annotations

import math

from vlrl.functional.advantages import group_advantages
from vlrl.functional.checks import check_shapes
from vlrl.functional.exact import mean, std
from vlrl.functional.returns import discounted_returns, token_rewards
from vlrl.services.lazy import Tensor, torch


def reinforce_pp_token_advantages(
    reward_BT: Tensor,
    mask_BT: Tensor,
    group_B: Tensor | None = None,
    *,
    gamma: float = 1.0,
    eps: float = 1e-8,
) -> Tensor:
    """REINFORCE++ of rewards per token: discounted returns, normalised over all kept tokens of the batch.

        A_t = (R_t - m) / sqrt(v + eps),  R_t = r_t + gamma R_{t+1};  m, v: mean and unbiased variance of R
        over the tokens

    With `group_B`, the mean over the group of the rollouts' summed rewards is first subtracted from each
    rollout's last reward. Where gamma is 1 and the only reward is at the last token, it is
    `reinforce_pp_advantages` of that reward.
    Paper: Hu 2025, arXiv:2501.03262, eq. 3-5; compute_reinforce_plus_plus_outcome_advantage of
    verl-project/verl 1dda039b.

    Args:
        reward_BT: (B, T) rewards, for instance of `token_rewards`.
        mask_BT: (B, T) 1 or True on trained tokens.
        group_B: (B,) integer prompt ids, for the baseline; None for none.
        gamma: discount per kept token.
        eps: added to the variance.

    Returns:
        (B, T) advantages, 0 outside the mask; zeros where all returns are equal.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> reinforce_pp_token_advantages(torch.tensor([[1.0, 0.0, 9.0]]), torch.tensor([[1, 1, 0]]), eps=0.0)
    tensor([[ 0.7071, -0.7071,  0.0000]])
    """
    check_shapes("BT", reward_BT=reward_BT, mask_BT=mask_BT)
    kept_BT = mask_BT > 0
    reward_BT = torch.where(kept_BT, reward_BT, 0.0)
    if group_B is not None:
        total_B = reward_BT.sum(-1)
        baseline_B = total_B - group_advantages(total_B, group_B, scale="none")
        reward_BT = reward_BT - token_rewards(baseline_B, mask_BT)
    return_BT = discounted_returns(reward_BT, mask_BT, gamma)
    flat = return_BT[kept_BT].tolist()
    centre, spread = mean(flat), std(flat)
    if spread < 1e-12:  # all equal: rounding errors must not be divided by their own size
        return torch.zeros_like(reward_BT)
    return torch.where(kept_BT, (return_BT - centre) / math.sqrt(spread**2 + eps), 0.0)


def remax_advantages(reward_BT: Tensor, baseline_B: Tensor, mask_BT: Tensor, *, gamma: float = 1.0) -> Tensor:
    """ReMax with rewards per token: the reward to go less the greedy completion's reward.

        A_t = sum_{s >= t} gamma^(s - t) r_s - r(greedy)

    Paper: Li et al. 2023 (ReMax), arXiv:2310.10505, eq. 5 and algorithm 1; compute_remax_outcome_advantage of
    verl-project/verl 1dda039b.

    Args:
        reward_BT: (B, T) rewards, for instance of `token_rewards`.
        baseline_B: (B,) summed rewards of the greedy completions of the same prompts.
        mask_BT: (B, T) 1 or True on trained tokens.
        gamma: discount per kept token.

    Returns:
        (B, T) advantages, 0 outside the mask.

    Raises:
        ValueError: for shapes that differ.

    >>> remax_advantages(torch.tensor([[0.5, 1.0]]), torch.tensor([1.0]), torch.tensor([[1, 1]]))
    tensor([[0.5000, 0.0000]])
    """
    check_shapes("B", baseline_B=baseline_B)
    return_BT = discounted_returns(reward_BT, mask_BT, gamma)
    if len(baseline_B) != len(return_BT):
        raise ValueError(
            f"baseline_B has {len(baseline_B)} rows, reward_BT {len(return_BT)}; both must have one per "
            "sequence"
        )
    return torch.where(mask_BT > 0, return_BT - baseline_B[:, None], 0.0)
