"""Estimates of the KL divergence between the policy and a reference from the log-probs of sampled tokens
(nats).

Shape legend: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from vlrl.functional.checks import check_choice, check_shapes, choose, kept_tokens
from vlrl.functional.ratios import log_ratio
from vlrl.services.lazy import Tensor, torch
from vlrl.types import PerToken

ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda u: -u,
    "k2": lambda u: u.square() / 2,
    "k3": lambda u: torch.expm1(u) - u,
    "abs": lambda u: u.abs(),
}
GRADIENTS = ("direct", "k2", "importance")


def kl_estimate(
    logp_BT: Tensor,
    ref_logp_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    kind: str = "k3",
    clamp_log: float = 0.0,
    clamp_value: float = 0.0,
) -> Tensor:
    """Schulman's estimators of KL(pi || ref) per token, for tokens drawn from pi.

        u = log ref - log pi;   k1 = -u,  k2 = u^2 / 2,  k3 = e^u - u - 1,  abs = |u|

    k1 and k3 are unbiased, k3 is never negative; k2 and abs are biased. 0 outside the mask.
    Source: Schulman 2020, joschu.net/blog/kl-approx.html; as a loss: Shao et al. 2024, arXiv:2402.03300, eq.
    4.

    Args:
        logp_BT: (B, T) log-probs of the policy.
        ref_logp_BT: (B, T) log-probs of the reference; detached.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.
        kind: "k1", "k2", "k3" or "abs".
        clamp_log: bounds u to [-clamp_log, clamp_log] (verl: 20); 0 for no bound.
        clamp_value: bounds the estimate likewise (verl: 10); 0 for no bound.

    Returns:
        (B, T) nats, with the gradient of the expression as it stands.

    Raises:
        ValueError: for an unknown kind, shapes that differ, or a negative bound.

    >>> logp, ref = torch.tensor([[-1.0]]), torch.tensor([[-2.0]])
    >>> [round(kl_estimate(logp, ref, kind=kind).item(), 4) for kind in ("k1", "k2", "k3", "abs")]
    [1.0, 0.5, 0.3679, 1.0]
    """
    estimator = choose("kind", kind, ESTIMATORS)
    if min(clamp_log, clamp_value) < 0:
        raise ValueError(
            f"clamp_log={clamp_log} and clamp_value={clamp_value} must not be negative; 0 is no bound"
        )
    check_shapes("BT", logp_BT=logp_BT, ref_logp_BT=ref_logp_BT)
    u_BT = torch.where(kept_tokens(mask_BT, logp_BT, "logp_BT"), ref_logp_BT.detach() - logp_BT, 0.0)
    return _bounded(estimator(_bounded(u_BT, clamp_log)), clamp_value)


def kl_penalty(
    logp_BT: Tensor,
    ref_logp_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    kind: str = "k3",
    gradient: str = "direct",
    old_logp_BT: Tensor | None = None,
    clamp_log: float = 0.0,
    clamp_value: float = 0.0,
) -> PerToken:
    """KL penalty as a loss term: an estimate of KL(pi || ref) per token with a choice of gradient.

    On-policy the mean gradient of k2 is that of KL(pi || ref), that of k3 is KL(ref || pi)'s, and that of k1
    is zero. `gradient` "direct" differentiates the estimate as it stands (GRPO, TRL); "k2" keeps the value of
    `kind` with k2's gradient, which no bound removes (verl's kinds with "+": kl_penalty in
    verl/trainer/ppo/core_algos.py of verl-project/verl 1dda039b); "importance" multiplies by pi / pi_old,
    whose gradient makes k1 and k3 unbiased (DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1).
    Source: estimators: `kl_estimate`; gradients: Tang and Munos 2025, arXiv:2506.09477.

    Args:
        logp_BT: (B, T) log-probs of the trained policy, with gradient.
        ref_logp_BT: (B, T) log-probs of the reference; detached.
        mask_BT: (B, T) trained tokens; None for all.
        kind: "k1", "k2", "k3" or "abs".
        gradient: "direct", "k2" or "importance".
        old_logp_BT: (B, T) log-probs of the policy that sampled; only read, and needed, by gradient
            "importance".
        clamp_log: bounds log ref - log pi to [-clamp_log, clamp_log]; 0 for no bound.
        clamp_value: bounds the estimate likewise; 0 for no bound.

    Returns:
        The (B, T) loss, 0 outside the mask; metrics "kl", the estimate.

    Raises:
        ValueError: for an unknown kind or gradient, a missing old_logp_BT, shapes that differ, or a negative
            bound.

    >>> loss, metrics = kl_penalty(torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.0, float("nan")]]),
    ... torch.tensor([[1, 0]]))
    >>> loss
    tensor([[0., 0.]])
    """
    check_choice("gradient", gradient, GRADIENTS)
    if gradient == "importance" and old_logp_BT is None:
        raise ValueError(
            "old_logp_BT=None; gradient='importance' needs the log-probs of the policy that sampled"
        )
    kl_BT = kl_estimate(
        logp_BT, ref_logp_BT, mask_BT, kind=kind, clamp_log=clamp_log, clamp_value=clamp_value
    )
    loss_BT = kl_BT
    if gradient == "k2":
        k2_BT = kl_estimate(
            logp_BT, ref_logp_BT, mask_BT, kind="k2"
        )  # unbounded: a bound would remove the gradient where the policy is far away
        loss_BT = kl_BT.detach() + k2_BT - k2_BT.detach()
    elif old_logp_BT is not None and gradient == "importance":
        loss_BT = log_ratio(logp_BT, old_logp_BT, mask_BT).exp() * kl_BT
    return PerToken(loss_BT, {"kl": kl_BT.detach()})


def adaptive_kl_coef(
    coef: float, kl: float, target: float, steps: float = 1.0, horizon: float = 10_000.0
) -> float:
    """Adaptive KL controller: the coefficient rises while the measured KL is above its target, and falls
    below it.

        coef (1 + clip(kl / target - 1, -0.2, 0.2) steps / horizon)

    Paper: Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2 (K_beta = 0.1 for a batch of their size, as a
    horizon of 10000 rollouts); AdaptiveKLController in verl/trainer/ppo/core_algos.py of verl-project/verl
    1dda039b, with the same clip.

    Args:
        coef: the coefficient so far.
        kl: the measured KL, in nats per sequence or token, as `target`.
        target: the wanted KL, above 0.
        steps: rollouts since the last call.
        horizon: rollouts over which a full error changes the coefficient by a fifth of itself, about; above
            0.

    Returns:
        The new coefficient.

    Raises:
        ValueError: for a target or horizon that is not above 0.

    >>> adaptive_kl_coef(0.1, kl=12.0, target=6.0, steps=100, horizon=1000)
    0.10200000000000001
    """
    if min(target, horizon) <= 0:
        raise ValueError(f"target={target} and horizon={horizon} must be above 0")
    return coef * (1 + min(max(kl / target - 1, -0.2), 0.2) * steps / horizon)


def _bounded(value: Tensor, bound: float) -> Tensor:
    """To [-bound, bound]; 0 is no bound."""
    return value.clamp(-bound, bound) if bound else value
