"""Importance ratios between two policies: per token, per sequence, and as weights against a sampler that is not the trainer.

Log-probs are natural logarithms (nats) of the sampled tokens. Whatever stands outside the mask (padding, also inf and nan) reaches neither results
nor gradients.

Shape legend: B sequences, T tokens, N samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlrl.functional.checks import check_choice, check_shapes, kept_tokens, lengths

LOG_RATIO_BOUND = 20.0  # |log ratio| of `importance_weights` before exp
LEVELS = ("token", "sequence", "geometric")
MODES = ("truncate", "mask")


def log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """Log importance ratio per token: log pi(y_t) - log pi_old(y_t), 0 outside the mask.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy to compare with; detached.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.

    Returns:
        (B, T) nats.

    Raises:
        ValueError: for shapes that differ.

    >>> log_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, float("nan")]]), torch.tensor([[1, 0]]))
    tensor([[0.5000, 0.0000]])
    """
    check_shapes("BT", logp_BT=logp_BT, old_logp_BT=old_logp_BT)
    return torch.where(kept_tokens(mask_BT, logp_BT, "logp_BT"), logp_BT - old_logp_BT.detach(), 0.0)


def sequence_log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """GSPO's length-normalised log ratio of a sequence: the mean over its tokens of log pi - log pi_old.

    Paper: Zheng et al. 2025, arXiv:2507.18071, eq. 7.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled; detached.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.

    Returns:
        (B, 1) nats per token; 0 for a sequence without tokens.

    Raises:
        ValueError: for shapes that differ.

    >>> sequence_log_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]))
    tensor([[0.5000]])
    """
    kept_BT = kept_tokens(mask_BT, logp_BT, "logp_BT")
    return (log_ratio(logp_BT, old_logp_BT, mask_BT).sum(-1) / lengths(kept_BT, logp_BT.dtype))[:, None]


def importance_weights(
    old_logp_BT: Tensor,
    sampled_logp_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    level: str = "token",
    mode: str = "truncate",
    cap: float | None = 2.0,
    floor: float = 0.0,
) -> Tensor:
    """Truncated importance sampling (TIS), and masked importance sampling, between the trainer's and the sampler's log-probs.

        truncate: w = min(rho, cap);   mask: w = rho where floor <= rho <= cap, else 0;   rho = pi_old / pi_sampler

    rho is the token's ratio ("token"), the product over the sequence's tokens ("sequence"), or that product's T-th root ("geometric", as in GSPO,
    arXiv:2507.18071, eq. 7). log rho is bounded to [-20, 20].
    Paper: truncation: Ionides 2008, in IMPALA, arXiv:1802.01561, eq. 1; as the behaviour weight of decoupled PPO: Fu et al. 2025, arXiv:2505.24298.

    Args:
        old_logp_BT: (B, T) log-probs that the trainer computes for the policy that the step started from.
        sampled_logp_BT: (B, T) log-probs that the engine noted while sampling.
        mask_BT: (B, T) 1 or True on tokens that count; None for all. Tokens outside it have rho = 1.
        level: "token", "sequence" or "geometric".
        mode: "truncate" or "mask".
        cap: the largest ratio; None for no bound.
        floor: the smallest ratio that mode "mask" keeps; "truncate" ignores it.

    Returns:
        (B, T) for level "token", else (B, 1); without gradient.

    Raises:
        ValueError: for shapes that differ, an unknown level or mode, or a floor outside [0, cap].

    >>> old, sampled = torch.tensor([[0.0, 0.0]]), torch.tensor([[-2.0, 0.0]])
    >>> importance_weights(old, sampled)
    tensor([[2., 1.]])
    >>> importance_weights(old, sampled, mode="mask")
    tensor([[0., 1.]])
    """
    check_shapes("BT", old_logp_BT=old_logp_BT, sampled_logp_BT=sampled_logp_BT)
    check_choice("level", level, LEVELS)
    check_choice("mode", mode, MODES)
    limit = float("inf") if cap is None else cap
    if not 0 <= floor <= limit:
        raise ValueError(f"floor={floor} must be in [0, cap], and cap is {cap}")
    kept_BT = kept_tokens(mask_BT, old_logp_BT, "old_logp_BT")
    log_rho = torch.where(kept_BT, (old_logp_BT - sampled_logp_BT).detach(), 0.0)
    if level != "token":
        log_rho = log_rho.sum(-1, keepdim=True)
    if level == "geometric":
        log_rho = log_rho / lengths(kept_BT, log_rho.dtype).unsqueeze(-1)
    rho = log_rho.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    if mode == "truncate":
        return rho.clamp(max=limit)
    return torch.where((rho >= floor) & (rho <= limit), rho, 0.0)


def icepop_weights(old_logp_BT: Tensor, sampled_logp_BT: Tensor, mask_BT: Tensor | None = None, *, low: float = 0.5, high: float = 5.0) -> Tensor:
    """IcePop: tokens on which trainer and engine disagree are left out.

        w_t = rho_t where low <= rho_t <= high, else 0;   rho_t = pi_old(y_t) / pi_sampler(y_t)

    Paper: Ling Team 2025 (Ring-1T), arXiv:2510.18855, section on IcePop; the defaults are the paper's.

    Args:
        old_logp_BT: (B, T) log-probs that the trainer computes for the policy that the step started from.
        sampled_logp_BT: (B, T) log-probs that the engine noted while sampling.
        mask_BT: (B, T) 1 or True on tokens that count; None for all. Tokens outside it have rho = 1.
        low: the smallest ratio that is kept.
        high: the largest ratio that is kept.

    Returns:
        (B, T) weights, without gradient.

    Raises:
        ValueError: for shapes that differ, or unless 0 <= low <= high.

    >>> icepop_weights(torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, -1.0]]))
    tensor([[0.0000, 2.7183]])
    """
    return importance_weights(old_logp_BT, sampled_logp_BT, mask_BT, level="token", mode="mask", cap=high, floor=low)


def effective_sample_size(log_weight_N: Tensor) -> Tensor:
    """Effective sample size of importance weights w = exp(log_weight), as a share of N.

        (sum w)^2 / (N sum w^2), in (0, 1]

    Source: Kong 1992 (effective sample size of importance sampling). The weights are scaled by their largest before exp, which changes nothing.

    Args:
        log_weight_N: (N,) log weights (nats), at least one.

    Returns:
        A scalar; 1 where all weights are equal.

    Raises:
        ValueError: for a tensor that is no vector, or an empty one.

    >>> effective_sample_size(torch.tensor([0.3, 0.3]))
    tensor(1.)
    """
    check_shapes("N", log_weight_N=log_weight_N)
    if not len(log_weight_N):
        raise ValueError("log_weight_N is empty; the effective sample size needs at least one weight")
    weight_N = (log_weight_N - log_weight_N.max()).exp()
    return weight_N.sum() ** 2 / (len(weight_N) * (weight_N**2).sum())
