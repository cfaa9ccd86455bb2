"""Policy-gradient losses with smooth or sequence-level bounds in place of PPO's clip; arguments, shapes and
results
as in `vlrl.functional.policy_losses`.

Shape legend: B sequences, T tokens. Log-probs are in nats. r = pi / pi_old is a token's importance ratio, A
its
advantage.
"""

from __future__ import annotations

import math

from vlrl.functional.checks import lengths
from vlrl.functional.policy_losses import prepare
from vlrl.functional.ratios import log_ratio
from vlrl.services.lazy import Tensor, torch
from vlrl.types import PerToken


def sapo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    positive: float = 1.0,
    negative: float = 1.05,
) -> PerToken:
    """SAPO: a sigmoid gate in place of the clip.

        L = -f(r) A,  f(r) = 4 / tau sigmoid(tau (r - 1)),  tau = `positive` for A > 0, else `negative`

    f'(1) = 1, so that on the old policy the gradient is REINFORCE's; it vanishes smoothly on both sides.
    Paper: Gao et al. 2025 (Qwen), arXiv:2511.20347, eq. 5-7; temperatures 1.0 and 1.05 from sec. 5.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        positive: tau of tokens with A > 0.
        negative: tau of the others.

    Returns:
        The (B, T) loss; metrics "ratio".

    Raises:
        ValueError: for shapes that differ.

    >>> sapo_loss(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([1.0])).loss
    tensor([[-2.]])
    """
    advantage_BT, _ = prepare(logp_BT, advantages, mask_BT)
    ratio_BT = log_ratio(logp_BT, old_logp_BT, mask_BT).exp()
    tau_BT = torch.where(advantage_BT > 0, ratio_BT.new_full((), positive), ratio_BT.new_full((), negative))
    gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * 4 / tau_BT
    return PerToken(-gate_BT * advantage_BT, {"ratio": ratio_BT.detach()})


def vespo_loss(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
) -> PerToken:
    """VESPO: REINFORCE with a gamma-shaped weight of the whole sequence's ratio.

        L = -sg(phi(w)) A log pi,  phi(w) = w^k e^(lambda (1 - w)),  w = pi(y) / pi_old(y)

    The log of w is bounded to [log 1e-8, 20], each token's part to [-20, 20]. phi(1) = 1: on the old policy
    it is REINFORCE. Paper: Shen et al. 2026, arXiv:2602.10693, eq. 11 and the released settings (2, 3) and
    (3, 2).

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        positive: (k, lambda) of tokens with A >= 0.
        negative: (k, lambda) of the others.

    Returns:
        The (B, T) loss; metrics "phi", "ratio" (of the token).

    Raises:
        ValueError: for shapes that differ.

    >>> vespo_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -2.0]]), torch.tensor([1.0])).loss
    tensor([[1., 2.]])
    """
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    log_ratio_BT = log_ratio(logp_BT, old_logp_BT, mask_BT).detach()
    log_w_B = log_ratio_BT.clamp(-20, 20).sum(-1).clamp(math.log(1e-8), 20)
    up_BT = advantage_BT >= 0
    k_BT, lam_BT = (
        torch.where(up_BT, log_w_B.new_full((), up), log_w_B.new_full((), down))
        for up, down in zip(positive, negative)
    )
    phi_BT = (lam_BT + k_BT * log_w_B[:, None] - lam_BT * log_w_B.exp()[:, None]).exp()
    loss_BT = -phi_BT * advantage_BT * torch.where(kept_BT, logp_BT, 0.0)
    return PerToken(loss_BT, {"phi": phi_BT, "ratio": log_ratio_BT.exp()})


def cpgd_loss(
    logp_BT: Tensor, old_logp_BT: Tensor, advantages: Tensor, mask_BT: Tensor | None = None, eps: float = 0.2
) -> PerToken:
    """CPGD: the policy gradient clipped in the log-ratio, so that no ratio multiplies the gradient.

        L = -min(d A, clip(d, log(1 - eps), log(1 + eps)) A),  d = log pi - log pi_old

    Paper: Liu et al. 2025, arXiv:2505.12504, eq. 5-7. On the old policy the gradient is that of REINFORCE.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy that sampled.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        eps: clip range of the ratio, in (0, 1).

    Returns:
        The (B, T) loss; metrics "clip_fraction", "ratio".

    Raises:
        ValueError: for shapes that differ, or an eps outside (0, 1).

    >>> cpgd_loss(torch.tensor([[-0.5, -1.0]]), torch.tensor([[-1.0, -1.0]]), torch.tensor([1.0])).loss
    tensor([[-0.1823, -0.0000]])
    """
    if not 0 < eps < 1:
        raise ValueError(f"eps={eps} must be in (0, 1)")
    advantage_BT, _ = prepare(logp_BT, advantages, mask_BT)
    d_BT = log_ratio(logp_BT, old_logp_BT, mask_BT)
    bounded_BT = d_BT.clamp(math.log(1 - eps), math.log(1 + eps))
    loss_BT = -torch.minimum(d_BT * advantage_BT, bounded_BT * advantage_BT)
    clip_BT = (bounded_BT != d_BT) & (d_BT * advantage_BT > bounded_BT * advantage_BT)
    return PerToken(loss_BT, {"clip_fraction": clip_BT.float(), "ratio": d_BT.exp().detach()})


def mirror_descent_loss(
    logp_BT: Tensor, old_logp_BT: Tensor, advantages: Tensor, mask_BT: Tensor | None = None, tau: float = 0.1
) -> PerToken:
    """Online policy mirror descent (Kimi k1.5), a loss per sequence.

        L_i = -A_i log pi(y_i) + tau / 2 (log pi(y_i) - log pi_old(y_i))^2, log-probs summed over the sequence

    A_i is the mean advantage of the sequence's tokens; use reward less group mean, `group_advantages(...,
    scale="none")`. Paper: Kimi Team 2025, arXiv:2501.12599, eq. 3 (its gradient).

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        old_logp_BT: (B, T) log-probs of the policy at the start of the step.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        tau: strength of the quadratic penalty, per nat squared.

    Returns:
        The (B,) loss; metrics "drift" (B,), "ratio" (B, T).

    Raises:
        ValueError: for shapes that differ.

    >>> mirror_descent_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]), torch.tensor([1.0]),
    ... tau=2.0).loss
    tensor([4.])
    """
    advantage_BT, kept_BT = prepare(logp_BT, advantages, mask_BT)
    advantage_B = advantage_BT.sum(-1) / lengths(kept_BT, logp_BT.dtype)
    log_ratio_BT = log_ratio(logp_BT, old_logp_BT, mask_BT)
    drift_B = log_ratio_BT.sum(-1)
    logp_B = torch.where(kept_BT, logp_BT, 0.0).sum(-1)
    return PerToken(
        -advantage_B * logp_B + tau / 2 * drift_B.square(),
        {"drift": drift_B.detach(), "ratio": log_ratio_BT.exp().detach()},
    )
