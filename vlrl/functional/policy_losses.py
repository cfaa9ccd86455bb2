"""Policy-gradient losses, unreduced: one number per token, to be summed by `vlrl.functional.aggregate`.

Every function returns `PerToken(loss, metrics)`: the loss, (B, T) and zero outside the mask (a loss per
sequence is (B,)), and numbers for the log without gradient. Gradients flow through `logp_BT` only; old
log-probs and advantages are constants. Whatever stands outside the mask (padding, also inf and nan) reaches
neither losses nor gradients. `advantages` are (B, T), or (B,) for one number per sequence. `mask_BT` is 1 or
True on trained tokens; None stands for all.

Shape legend: B sequences, T tokens. Log-probs are in nats. r = pi / pi_old is a token's importance ratio, A
its advantage.
"""

from __future__ import annotations

from collections.abc import Callable

from vlrl.functional.checks import check_shapes, choose, kept_tokens, lengths, per_token
from vlrl.functional.ratios import log_ratio, sequence_log_ratio
from vlrl.services.lazy import Tensor, torch
from vlrl.types import PerToken


def reinforce_loss(logp_BT: Tensor, advantages: Tensor, mask_BT: Tensor | None = None) -> PerToken:
    """REINFORCE: the policy gradient without ratio and without clip.

        L = -A log pi

    Biased once the policy has moved away from the sampler; meant for one optimizer step per batch.
    Paper: Williams 1992, doi:10.1007/BF00992696; GPG, arXiv:2504.02546, eq. 5.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.

    Returns:
        The (B, T) loss; no metrics.

    Raises:
        ValueError: for shapes that differ.

    >>> reinforce_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([3.0])).loss
    tensor([[3., 6.]])
    """
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    return PerToken(-advantage_BT * torch.where(kept_BT, logp_BT, 0.0), {})


def clipped_ratio_loss(
    ratio_BT: Tensor,
    advantage_BT: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    dual_clip: float | None = None,
) -> PerToken:
    """PPO's clipped objective of given ratios, the common part of the clipped losses.

        L = -min(r A, clip(r, 1 - low, 1 + high) A);   with `dual_clip` c and A < 0 at most -c A

    Paper: Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5.

    Args:
        ratio_BT: (B, T) ratios, with gradient.
        advantage_BT: (B, T) advantages.
        low: distance of the lower bound from 1; a number or a tensor that broadcasts to (B, T).
        high: distance of the upper bound from 1.
        dual_clip: c, above 1; None for none.

    Returns:
        The (B, T) loss; metrics "clip_fraction" (1 on tokens whose gradient the clip removes), "clip_high",
        "clip_low", "ratio", and with `dual_clip` "dual_clip_fraction" (1 on tokens whose loss it bounds).

    Raises:
        ValueError: for shapes that differ, or a dual_clip of 1 or less.

    >>> loss, metrics = clipped_ratio_loss(torch.tensor([[2.0, 0.5]]), torch.tensor([[1.0, 1.0]]), 0.2, 0.2)
    >>> loss, metrics["clip_fraction"]
    (tensor([[-1.2000, -0.5000]]), tensor([[1., 0.]]))
    """
    check_shapes("BT", ratio_BT=ratio_BT, advantage_BT=advantage_BT)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip={dual_clip} must be above 1 (3 is usual), or None for none")
    upper, lower = (
        torch.as_tensor(bound, dtype=ratio_BT.dtype, device=ratio_BT.device)
        for bound in (1.0 + high, 1.0 - low)
    )
    bounded_BT = torch.maximum(torch.minimum(ratio_BT, upper), lower)
    loss_BT = -torch.minimum(ratio_BT * advantage_BT, bounded_BT * advantage_BT)
    upper_BT = ((ratio_BT > upper) & (advantage_BT > 0)).float()
    lower_BT = ((ratio_BT < lower) & (advantage_BT < 0)).float()
    metrics = {
        "clip_fraction": upper_BT + lower_BT,
        "clip_high": upper_BT,
        "clip_low": lower_BT,
        "ratio": ratio_BT.detach(),
    }
    if dual_clip is not None:
        held_BT = (advantage_BT < 0) & (loss_BT.detach() > -dual_clip * advantage_BT)
        metrics["dual_clip_fraction"] = held_BT.float()
        loss_BT = torch.where(held_BT, -dual_clip * advantage_BT, loss_BT)
    return PerToken(loss_BT, metrics)


def ppo_clip_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    low: Tensor | float = 0.2,
    high: Tensor | float = 0.2,
    dual_clip: float | None = None,
) -> PerToken:
    """PPO's clipped surrogate, per token; with high > low DAPO's clip-higher.

        L = -min(r A, clip(r, 1 - low, 1 + high) A)

    Paper: Schulman et al. 2017, arXiv:1707.06347, eq. 7; clip-higher: Yu et al. 2025 (DAPO),
    arXiv:2503.14476, eq. 8; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5. On the old policy (r = 1) the
    gradient is that of REINFORCE.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        low: distance of the lower bound from 1, in [0, 1]; a number or a tensor that broadcasts to (B, T).
        high: distance of the upper bound from 1, 0 or more.
        dual_clip: c > 1 bounds the loss of tokens with A < 0 by -c A; None for none.

    Returns:
        The (B, T) loss; metrics "clip_fraction", "clip_high", "clip_low", "ratio", "ppo_kl" (log pi_old - log
        pi, whose mean over sampled tokens is the k1 estimate of KL(pi_old || pi)), and with `dual_clip`
        "dual_clip_fraction".

    Raises:
        ValueError: for shapes that differ, or a dual_clip of 1 or less.

    >>> logp, old = torch.tensor([[-0.5, -1.0]]), torch.tensor([[-1.0, -1.0]])
    >>> ppo_clip_loss(logp, old, torch.tensor([1.0])).loss
    tensor([[-1.2000, -1.0000]])
    """
    advantage_BT, _ = prepare(logp_BT, advantages, mask_BT)
    log_r_BT = log_ratio(logp_BT, old_logp_BT, mask_BT)
    loss_BT, metrics = clipped_ratio_loss(log_r_BT.exp(), advantage_BT, low, high, dual_clip)
    return PerToken(loss_BT, {**metrics, "ppo_kl": -log_r_BT.detach()})


def gspo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    low: float = 3e-4,
    high: float = 4e-4,
) -> PerToken:
    """GSPO: PPO's clip on the sequence's length-normalised ratio, the same for every token of a sequence.

        L = -min(s A, clip(s, 1 - low, 1 + high) A),  s = (pi(y) / pi_old(y))^(1 / |y|)

    Paper: Zheng et al. 2025, arXiv:2507.18071, eq. 5-7; ranges 3e-4 and 4e-4 from sec. 5.1. Aggregate with
    "sequence_mean". With T = 1 it is PPO.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.

    Returns:
        The (B, T) loss; metrics "clip_fraction", "clip_high", "clip_low", "ratio" (of the sequence).

    Raises:
        ValueError: for shapes that differ.

    >>> gspo_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]), torch.tensor([1.0]),
    ... high=1.0).loss
    tensor([[-1.6487, -1.6487]])
    """
    advantage_BT, _ = prepare(logp_BT, advantages, mask_BT)
    ratio_BT = sequence_log_ratio(logp_BT, old_logp_BT, mask_BT).expand_as(logp_BT).exp()
    return clipped_ratio_loss(ratio_BT, advantage_BT, low, high)


def gspo_token_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    low: float = 3e-4,
    high: float = 4e-4,
) -> PerToken:
    """GSPO-token: the value of GSPO's sequence ratio with the gradient of each token's own log-prob.

        L = -min(s_t A_t, clip(s_t, 1 - low, 1 + high) A_t),  s_t = sg(s) pi_t / sg(pi_t)

    With equal advantages along a sequence its loss, and under "sequence_mean" its gradient, are GSPO's, while
    advantages may differ between tokens. Paper: Zheng et al. 2025, arXiv:2507.18071, eq. 13-14.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.

    Returns:
        The (B, T) loss; metrics "clip_fraction", "clip_high", "clip_low", "ratio" (of the sequence).

    Raises:
        ValueError: for shapes that differ.

    >>> gspo_token_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]), torch.tensor([1.0]),
    ... high=1.0).loss
    tensor([[-1.6487, -1.6487]])
    """
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    own_BT = torch.where(kept_BT, logp_BT, 0.0)
    log_s_BT = sequence_log_ratio(logp_BT, old_logp_BT, mask_BT).detach() + own_BT - own_BT.detach()
    return clipped_ratio_loss(log_s_BT.exp(), advantage_BT, low, high)


def cispo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    low: float = 1.0,
    high: float = 4.0,
) -> PerToken:
    """CISPO: REINFORCE with a clipped importance weight; every token keeps its gradient.

        L = -sg(clip(r, 1 - low, 1 + high)) A log pi

    Paper: MiniMax 2025, arXiv:2506.13585, eq. 4-5. The paper tunes only the upper bound; `low` 1 is no lower
    bound. On the old policy it is REINFORCE.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1 (TRL's `epsilon_high` is 1 + high).

    Returns:
        The (B, T) loss; metrics "clip_fraction" (1 where the weight is bounded), "ratio".

    Raises:
        ValueError: for shapes that differ.

    >>> cispo_loss(torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), torch.tensor([1.0]), high=1.0).loss
    tensor([[2.]])
    """
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    ratio_BT = log_ratio(logp_BT, old_logp_BT, mask_BT).exp().detach()
    weight_BT = ratio_BT.clamp(1 - low, 1 + high)
    loss_BT = -weight_BT * advantage_BT * torch.where(kept_BT, logp_BT, 0.0)
    return PerToken(loss_BT, {"clip_fraction": (weight_BT != ratio_BT).float(), "ratio": ratio_BT})


def dppo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    divergence: str = "tv",
    low: float = 0.15,
    high: float = 0.15,
    cap: float | None = 20.0,
) -> PerToken:
    """DPPO: a trust region on the change of a token's probability in place of one on its ratio (binary TV or
    binary KL).

        L = -M sg(min(r, cap)) A log pi;   M = 0 where the policy has moved along A by more than the
        threshold, else 1 tv:  |pi - pi_old|          kl:  pi_old log(pi_old / pi) + (1 - pi_old) log((1 -
        pi_old) / (1 - pi))

    For A > 0 a token is held where pi > pi_old and the divergence exceeds `high`, for A <= 0 where pi <
    pi_old and it exceeds `low`. Paper: Qi et al. 2026, arXiv:2602.04879 (sec. 5.4: the cap);
    compute_policy_loss_dppo_tv and _kl of verl-project/verl 1dda039b; thresholds 0.15 (tv) and 0.05 (kl) of
    its examples/dppo_trainer.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        divergence: "tv" or "kl".
        low: threshold of tokens with A <= 0, above 0.
        high: threshold of tokens with A > 0, above 0.
        cap: the largest importance weight; None for none.

    Returns:
        The (B, T) loss; metrics "clip_fraction", "clip_high", "clip_low", "ratio", "ppo_kl".

    Raises:
        ValueError: for shapes that differ, an unknown divergence, or thresholds that are not above 0.

    >>> logp, old = torch.tensor([[0.9, 0.5]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> dppo_loss(logp, old, torch.tensor([1.0])).loss
    tensor([[0.0000, 0.6931]])
    """
    measure = choose("divergence", divergence, DIVERGENCES)
    if min(low, high) <= 0:
        raise ValueError(f"low={low} and high={high} must be above 0")
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    log_r_BT = log_ratio(logp_BT, old_logp_BT, mask_BT).detach()
    new_BT = torch.where(kept_BT, logp_BT, 0.0)
    p_BT, old_BT = new_BT.detach().exp(), torch.where(kept_BT, old_logp_BT.detach(), 0.0).exp()
    moved_BT = measure(p_BT, old_BT)
    upper_BT = (advantage_BT > 0) & (p_BT > old_BT) & (moved_BT > high)
    lower_BT = (advantage_BT <= 0) & (p_BT < old_BT) & (moved_BT > low)
    held_BT = upper_BT | lower_BT
    ratio_BT = log_r_BT.exp()
    weight_BT = torch.where(held_BT, 0.0, ratio_BT if cap is None else ratio_BT.clamp(max=cap))
    metrics = {
        "clip_fraction": held_BT.float(),
        "clip_high": upper_BT.float(),
        "clip_low": lower_BT.float(),
        "ratio": ratio_BT,
        "ppo_kl": -log_r_BT,
    }
    return PerToken(-weight_BT * advantage_BT * new_BT, metrics)


def _binary_kl(p: Tensor, old: Tensor) -> Tensor:
    """KL between two coins: old against p, finite also where one of them is 0 or 1."""
    tiny = 1e-8
    return old * ((old + tiny) / (p + tiny)).log() + (1 - old) * ((1 - old + tiny) / (1 - p + tiny)).log()


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tv": lambda p, old: (p - old).abs(),
    "kl": _binary_kl,
}


def gmpo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    low: float = 0.4,
    high: float = 0.4,
) -> PerToken:
    """GMPO: the geometric mean of a sequence's token ratios, each clipped on its own.

        L = -A exp(mean_t m_A(log r_t)),  m_A(u) = min(u, high) for A > 0, else max(u, -low)

    Paper: Zhao et al. 2025, arXiv:2507.20673, eq. 4 and algorithm 1; range (e^-0.4, e^0.4). Aggregate with
    "sequence_mean".

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        low: the lower bound of log r is -low.
        high: the upper bound of log r.

    Returns:
        The (B, T) loss; metrics "clip_fraction", "ratio" (of the token).

    Raises:
        ValueError: for shapes that differ.

    >>> gmpo_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]), torch.tensor([1.0])).loss
    tensor([[-1.2214, -1.2214]])
    """
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    log_r_BT = log_ratio(logp_BT, old_logp_BT, mask_BT)
    bounded_BT = torch.where(advantage_BT > 0, log_r_BT.clamp(max=high), log_r_BT.clamp(min=-low))
    ratio_B1 = (torch.where(kept_BT, bounded_BT, 0.0).sum(-1) / lengths(kept_BT, logp_BT.dtype)).exp()[
        :, None
    ]
    metrics = {"clip_fraction": (bounded_BT != log_r_BT).float(), "ratio": log_r_BT.exp().detach()}
    return PerToken(-advantage_BT * ratio_B1, metrics)


def prepare(logp_BT: Tensor, advantages: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B, T) advantages, 0 outside the mask and without gradient, and the mask as bool."""
    check_shapes("BT", logp_BT=logp_BT)
    kept_BT = kept_tokens(mask_BT, logp_BT, "logp_BT")
    return torch.where(kept_BT, per_token(advantages, logp_BT, "advantages").detach(), 0.0), kept_BT
