"""Importance ratios between two policies: per token, per sequence, and as weights against a sampler that is
not the trainer.

Log-probs are natural logarithms (nats) of the sampled tokens. Whatever stands outside the mask (padding, also
inf and nan) reaches neither results nor gradients.

Shape legend: B sequences, T tokens, N samples.
"""

from __future__ import annotations

from collections.abc import Callable

from vlrl.functional.checks import check_choice, check_shapes, choose, kept_tokens, lengths, per_token
from vlrl.services.lazy import Tensor, torch

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
    by_length: bool = False,
) -> Tensor:
    """Truncated importance sampling (TIS), and masked importance sampling, between the trainer's and the
    sampler's log-probs.

        truncate: w = min(rho, cap);   mask: w = rho where floor <= rho <= cap, else 0;   rho = pi_old /
        pi_sampler

    rho is the token's ratio ("token"), the product over the sequence's tokens ("sequence"), or that product's
    T-th root ("geometric", as in GSPO, arXiv:2507.18071, eq. 7). log rho is bounded to [-20, 20].
    `by_length`: the bounds are those of one token. Rounding adds up as a random walk, so those of a sequence
    are cap^sqrt(T), and cap^(1/sqrt(T)) of its root; floor alike (vlrl original).
    Paper: truncation: Ionides 2008, in IMPALA, arXiv:1802.01561, eq. 1; as the behaviour weight of decoupled
    PPO: Fu et al. 2025, arXiv:2505.24298.

    Args:
        old_logp_BT: (B, T) log-probs that the trainer computes for the policy that the step started from.
        sampled_logp_BT: (B, T) log-probs that the engine noted while sampling.
        mask_BT: (B, T) 1 or True on tokens that count; None for all. Tokens outside it have rho = 1.
        level: "token", "sequence" or "geometric".
        mode: "truncate" or "mask".
        cap: the largest ratio; None for no bound.
        floor: the smallest ratio that mode "mask" keeps; "truncate" ignores it.
        by_length: whether the bounds of levels "sequence" and "geometric" go with the number of tokens.

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
    low, high = (torch.tensor(bound, dtype=rho.dtype, device=rho.device) for bound in (floor, limit))
    if by_length and level != "token":
        root_B1 = lengths(kept_BT, rho.dtype).clamp(min=1).sqrt().unsqueeze(-1)
        power_B1 = root_B1 if level == "sequence" else 1 / root_B1
        low, high = low**power_B1, high**power_B1
    if mode == "truncate":
        return torch.minimum(rho, high)
    return torch.where((rho >= low) & (rho <= high), rho, 0.0)


def batch_normalised(weight_BT: Tensor, mask_BT: Tensor | None = None, *, level: str = "token") -> Tensor:
    """Batch-normalised importance weights: weights over their mean, so that a correction does not change the
    size of the loss.

        w / mean w, the mean over the kept tokens ("token") or over the sequences that have any ("sequence",
        "geometric")

    Paper: self-normalised importance sampling, Owen 2013, Monte Carlo theory, ch. 9;
    rollout_is_batch_normalize in verl/trainer/ppo/rollout_corr_helper.py of verl-project/verl 1dda039b.

    Args:
        weight_BT: (B, T), or (B, 1) for weights per sequence, for instance of `importance_weights`.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.
        level: that of the weights.

    Returns:
        The shape of `weight_BT`; unchanged where the mean is 0.

    Raises:
        ValueError: for an unknown level, or a mask that does not fit.

    >>> batch_normalised(torch.tensor([[2.0, 1.0], [3.0, 9.0]]), torch.tensor([[1, 1], [1, 0]]))
    tensor([[1.0000, 0.5000],
            [1.5000, 4.5000]])
    """
    total, count = weight_sums(weight_BT, mask_BT, level=level)
    return weight_BT * (count / total) if total > 0 else weight_BT


def weight_sums(
    weight_BT: Tensor, mask_BT: Tensor | None = None, *, level: str = "token"
) -> tuple[float, float]:
    """What the mean of `batch_normalised` is made of, to be added up over micro-batches and ranks.

    Args:
        weight_BT: (B, T) or (B, 1).
        mask_BT: (B, T); None for all.
        level: "token", "sequence" or "geometric".

    Returns:
        (sum of the weights, their number), over tokens or sequences.

    Raises:
        ValueError: for an unknown level, or a mask that does not fit.

    >>> weight_sums(torch.tensor([[2.0], [3.0]]), torch.tensor([[1, 1], [0, 0]]), level="sequence")
    (2.0, 1.0)
    """
    check_choice("level", level, LEVELS)
    mask_BT = torch.ones_like(weight_BT) if mask_BT is None else mask_BT
    kept_BT = kept_tokens(mask_BT, weight_BT.expand(mask_BT.shape), "weight_BT")
    if level != "token":
        kept_BT, weight_BT = kept_BT.any(-1, keepdim=True), weight_BT[:, :1]
    return float(torch.where(kept_BT, weight_BT, 0.0).sum()), float(kept_BT.sum())


def rejection_mask(
    old_logp_BT: Tensor,
    sampled_logp_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    kind: str = "k3",
    level: str = "token",
    limit: float = 0.01,
) -> Tensor:
    """Rejection of tokens or sequences on which trainer and sampler disagree: 1 where the divergence is at
    most `limit`, else 0.

        u = log pi_old - log pi_sampler;   k1 = |u|,  k2 = u^2 / 2,  k3 = e^u - u - 1
        token: of the token;   sequence_sum, sequence_mean, sequence_max: over the sequence's kept tokens

    Unlike `importance_weights` with mode "mask" it does not weigh what it keeps. u is bounded to [-20, 20].
    Source: rollout_rs in verl/trainer/ppo/rollout_corr_helper.py of verl-project/verl 1dda039b, whose bounds
    of k1 are ratios: limit = log(upper). Here k1 of a sequence is the absolute value of the sum or mean of u.

    Args:
        old_logp_BT: (B, T) log-probs that the trainer computes for the policy that the step started from.
        sampled_logp_BT: (B, T) log-probs that the engine noted while sampling.
        mask_BT: (B, T) 1 or True on tokens that count; None for all.
        kind: "k1", "k2" or "k3".
        level: "token", "sequence_sum", "sequence_mean" or "sequence_max".
        limit: nats, above 0.

    Returns:
        (B, T) for level "token", else (B, 1): 0 or 1, without gradient. Tokens outside the mask, and
        sequences without tokens, have 1.

    Raises:
        ValueError: for shapes that differ, an unknown kind or level, or a limit that is not above 0.

    >>> old, sampled = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.2]])
    >>> rejection_mask(old, sampled, kind="k2", limit=0.015), rejection_mask(old, sampled, kind="k2",
    ... level="sequence_mean", limit=0.015)
    (tensor([[1., 0.]]), tensor([[1.]]))
    """
    measure = choose("kind", kind, REJECTIONS)
    reduce = choose("level", level, REDUCTIONS)
    if limit <= 0:
        raise ValueError(f"limit={limit} must be above 0")
    kept_BT = kept_tokens(mask_BT, old_logp_BT, "old_logp_BT")
    u_BT = log_ratio(old_logp_BT.detach(), sampled_logp_BT, mask_BT).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (reduce(measure(u_BT), kept_BT).abs() <= limit).to(u_BT.dtype)


REJECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda u: u,
    "k2": lambda u: u.square() / 2,
    "k3": lambda u: torch.expm1(u) - u,
}
REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": lambda value_BT, kept_BT: value_BT,
    "sequence_sum": lambda value_BT, kept_BT: value_BT.sum(-1, keepdim=True),
    "sequence_mean": lambda value_BT, kept_BT: value_BT.sum(-1, keepdim=True) / lengths(kept_BT,
        value_BT.dtype)[:, None],
    "sequence_max": lambda value_BT, kept_BT: value_BT.abs().amax(-1, keepdim=True),
}  # fmt: skip


def off_policy_sequence_mask(
    logp_BT: Tensor,
    sampled_logp_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    *,
    delta: float = 1e-4,
) -> Tensor:
    """DeepSeek-V3.2's off-policy sequence mask: no loss on disadvantageous tokens of sequences from which the
    policy has moved away.

        M_t = 0 where A_t < 0 and mean_t (log pi_sampler - log pi) > delta, else 1

    Paper: DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1 (off-policy sequence masking), which leaves delta open;
    1e-4 is the default of slime (THUDM/slime 624b824a, slime/utils/arguments.py); TRL f2cd5771 has the same
    mask (off_policy_mask_threshold, no default).

    Args:
        logp_BT: (B, T) log-probs of the trained policy; detached.
        sampled_logp_BT: (B, T) log-probs of the policy that sampled, best those of the engine.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        delta: threshold in nats per token.

    Returns:
        (B, T): 0 or 1, without gradient. Tokens outside the mask have 1.

    Raises:
        ValueError: for shapes that differ.

    >>> logp, sampled = torch.tensor([[-2.0, -2.0], [-2.0, -2.0]]), torch.tensor([[-1.0, -2.0], [-1.0, -2.0]])
    >>> off_policy_sequence_mask(logp, sampled, torch.tensor([-1.0, 1.0]), delta=0.4)
    tensor([[0., 0.],
            [1., 1.]])
    """
    away_B1 = -sequence_log_ratio(logp_BT.detach(), sampled_logp_BT, mask_BT)
    negative_BT = kept_tokens(mask_BT, logp_BT, "logp_BT") & (
        per_token(advantages, logp_BT, "advantages") < 0
    )
    return (~(negative_BT & (away_B1 > delta))).to(logp_BT.dtype)


def icepop_weights(
    old_logp_BT: Tensor,
    sampled_logp_BT: Tensor,
    mask_BT: Tensor | None = None,
    *,
    low: float = 0.5,
    high: float = 5.0,
) -> Tensor:
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
    return importance_weights(
        old_logp_BT, sampled_logp_BT, mask_BT, level="token", mode="mask", cap=high, floor=low
    )


def effective_sample_size(log_weight_N: Tensor) -> Tensor:
    """Effective sample size of importance weights w = exp(log_weight), as a share of N.

        (sum w)^2 / (N sum w^2), in (0, 1]

    Source: Kong 1992 (effective sample size of importance sampling). The weights are scaled by their largest
    before exp, which changes nothing.

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
