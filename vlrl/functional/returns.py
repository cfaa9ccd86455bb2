"""Returns, generalised advantage estimation, whitening, rewards per token and the critic's loss.

Every function works in the dtype of its input; give float64 for exact baselines. Tokens outside the mask
(padding, tool output) are skipped: a return passes over them as if they were not there, and their results are
0.

Shape legend: B sequences, T tokens, N tokens of all sequences.
"""

from __future__ import annotations

import math

from vlrl.functional.checks import check_shapes, kept_tokens
from vlrl.functional.exact import mean
from vlrl.services.lazy import Tensor, torch


def token_rewards(
    reward_B: Tensor, mask_BT: Tensor, kl_BT: Tensor | None = None, kl_coef: float = 0.0
) -> Tensor:
    """Rewards per token of RLHF: the outcome at the last kept token, less a KL penalty at every token.

        r_t = [t is the last token] R - kl_coef k_t

    Source: Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155, eq. 2.

    Args:
        reward_B: (B,) outcome rewards.
        mask_BT: (B, T) 1 or True on the policy's tokens.
        kl_BT: (B, T) KL estimates, for instance of `kl_estimate`; None for none.
        kl_coef: the penalty's coefficient.

    Returns:
        (B, T) rewards in the dtype of `reward_B`, 0 outside the mask; zeros for a sequence without tokens.

    Raises:
        ValueError: for shapes that differ.

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([[1, 1, 0]]), torch.tensor([[0.5, 0.25, 9.0]]),
    ... kl_coef=1.0)
    tensor([[-0.5000,  0.7500,  0.0000]])
    """
    check_shapes("B", reward_B=reward_B)
    check_shapes("BT", mask_BT=mask_BT)
    if len(mask_BT) != len(reward_B):
        raise ValueError(
            f"mask_BT has {len(mask_BT)} rows, reward_B {len(reward_B)}; both must have one per sequence"
        )
    kept_BT = mask_BT > 0
    place_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand(mask_BT.shape)
    last_B1 = torch.where(kept_BT, place_BT, -1).amax(-1, keepdim=True) if mask_BT.shape[1] else place_BT
    out_BT = torch.where(place_BT == last_B1, reward_B[:, None], 0.0)
    if kl_BT is not None:
        check_shapes("BT", mask_BT=mask_BT, kl_BT=kl_BT)
        out_BT = out_BT - torch.where(kept_BT, kl_coef * kl_BT, 0.0)
    return out_BT


def discounted_returns(reward_BT: Tensor, mask_BT: Tensor | None = None, gamma: float = 1.0) -> Tensor:
    """Discounted returns, the reward to go.

        R_t = r_t + gamma R_{t+1}, over the tokens that the mask keeps

    Args:
        reward_BT: (B, T) rewards.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.
        gamma: discount per kept token.

    Returns:
        (B, T) returns, 0 outside the mask.

    Raises:
        ValueError: for shapes that differ.

    >>> discounted_returns(torch.tensor([[0.0, 0.0, 1.0]]), gamma=0.5)
    tensor([[0.2500, 0.5000, 1.0000]])
    """
    check_shapes("BT", reward_BT=reward_BT)
    kept_BT = kept_tokens(mask_BT, reward_BT, "reward_BT")
    out_BT, following_B = torch.zeros_like(reward_BT), torch.zeros_like(reward_BT[:, 0])
    for t in range(reward_BT.shape[1] - 1, -1, -1):
        following_B = torch.where(kept_BT[:, t], reward_BT[:, t] + gamma * following_B, following_B)
        out_BT[:, t] = torch.where(kept_BT[:, t], following_B, 0.0)
    return out_BT


def gae(
    reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor | None = None, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (GAE).

        A_t = sum_k (gamma lambda)^k delta_{t+k},  delta_t = r_t + gamma V_{t+1} - V_t,  V = 0 after the last
        token

    Paper: Schulman et al. 2016, arXiv:1506.02438, eq. 16. With gamma = lambda = 1 it is A = R - V
    (Open-Reasoner-Zero, arXiv:2503.24290).

    Args:
        reward_BT: (B, T) rewards, for instance of `token_rewards`.
        value_BT: (B, T) the critic's values of the states before each token.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.
        gamma: discount per kept token.
        lam: lambda, 0 (one-step) to 1 (Monte Carlo).

    Returns:
        (B, T) advantages and (B, T) value targets A + V, both 0 outside the mask and without gradient.

    Raises:
        ValueError: for shapes that differ.

    >>> gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]]), lam=0.0)
    (tensor([[0.0000, 0.5000]]), tensor([[0.5000, 1.0000]]))
    """
    check_shapes("BT", reward_BT=reward_BT, value_BT=value_BT)
    kept_BT = kept_tokens(mask_BT, reward_BT, "reward_BT")
    reward_BT, value_BT = reward_BT.detach(), value_BT.detach()
    out_BT = torch.zeros_like(reward_BT)
    following_B = torch.zeros_like(reward_BT[:, 0])
    advantage_B = torch.zeros_like(following_B)
    for t in range(reward_BT.shape[1] - 1, -1, -1):
        kept_B = kept_BT[:, t]
        here_B = reward_BT[:, t] + gamma * following_B - value_BT[:, t] + gamma * lam * advantage_B
        advantage_B = torch.where(kept_B, here_B, advantage_B)
        following_B = torch.where(kept_B, value_BT[:, t], following_B)
        out_BT[:, t] = torch.where(kept_B, advantage_B, 0.0)
    return out_BT, torch.where(kept_BT, out_BT + value_BT, 0.0)


def whiten(values: Tensor, mask: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """Whitening: mean 0 and variance 1 over all entries that the mask keeps.

        (v - mean) / (std + eps), with the population's std

    Mean and std are computed in float64 with exactly rounded sums (on the CPU), so that they do not depend on
    the order of the entries.

    Args:
        values: any shape, for instance (B, T) advantages.
        mask: the same shape, 1 or True on entries that count; None for all.
        eps: added to the std.

    Returns:
        The same shape and dtype, 0 outside the mask, without gradient. Entries equal to the mean are exactly
        0, so equal entries give zeros.

    Raises:
        ValueError: for shapes that differ.

    >>> whiten(torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[1, 1, 0]]))
    tensor([[-1.,  1.,  0.]])
    """
    if mask is not None and mask.shape != values.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, values {tuple(values.shape)}; both must be equal"
        )
    kept = torch.ones_like(values, dtype=torch.bool) if mask is None else mask > 0
    flat = values.detach()[kept].tolist()
    centre = mean(flat)
    spread = math.sqrt(mean([(v - centre) ** 2 for v in flat])) + eps
    out = torch.zeros_like(values)
    out[kept] = torch.tensor(
        [(v - centre) / spread if v != centre else 0.0 for v in flat],
        dtype=values.dtype,
        device=values.device,
    )
    return out


def value_clip_fraction(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """Where PPO's value clipping decides the loss: 1 where the loss of the clipped value is the larger one,
    so that the value has no gradient.

    Source: arXiv:2005.12729, sec. 3; vf_clipfrac of compute_value_loss in verl/trainer/ppo/core_algos.py of
    verl-project/verl 1dda039b.

    Args:
        value: values, (N,) or (B, T).
        old_value: values when the rollouts were collected, the same shape.
        target: regression targets, the same shape.
        clip: the clip range; 0 for none.

    Returns:
        0 or 1 in the shape and dtype of `value`, without gradient; zeros without a clip.

    Raises:
        ValueError: for shapes that differ, or a negative clip.

    >>> value_clip_fraction(torch.tensor([2.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 2.0]),
    ... clip=0.5)
    tensor([1., 0.])
    """
    clipped = value_loss(value.detach(), old_value, target, clip)
    larger = clipped > value_loss(value.detach(), old_value, target)
    return (larger & ((value.detach() - old_value).abs() > clip)).to(value.dtype)  # inside it is rounding


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float = 0.0) -> Tensor:
    """PPO's clipped value loss, per token.

        0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2); without the second part where c is 0

    Source: arXiv:2005.12729, sec. 3.

    Args:
        value: values with gradient, (N,) or (B, T).
        old_value: values when the rollouts were collected, the same shape; read only with a clip.
        target: regression targets, for instance the second result of `gae`.
        clip: c, 0 for none.

    Returns:
        The loss, in the shape of `value`.

    Raises:
        ValueError: for shapes that differ, or a negative clip.

    >>> value_loss(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([1.0]), clip=0.5)
    tensor([0.5000])
    """
    if not value.shape == old_value.shape == target.shape:
        raise ValueError(
            f"value, old_value and target have shapes {tuple(value.shape)}, {tuple(old_value.shape)}, "
            f"{tuple(target.shape)}; they must be equal"
        )
    if clip < 0:
        raise ValueError(f"clip={clip} must not be negative; 0 is no clip")
    plain = (value - target).square()
    if not clip:
        return 0.5 * plain
    bounded = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.maximum(plain, (bounded - target).square())
