"""Numbers about samples and updates, for the log: pass@k, clip fractions.

Shape legend: B sequences, T tokens.
"""

from __future__ import annotations

import math

from vlrl.functional.aggregation import masked_mean
from vlrl.functional.checks import check_shapes, kept_tokens, per_token
from vlrl.functional.policy_losses import clipped_ratio_loss
from vlrl.services.lazy import Tensor


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased pass@k: the probability that k of n samples, drawn without replacement, hold at least one of
    the c correct ones.

        1 - C(n - c, k) / C(n, k)

    Paper: Chen et al. 2021, arXiv:2107.03374, eq. 1.

    Args:
        n: samples.
        c: correct samples.
        k: samples per draw.

    Returns:
        A probability; 1 where fewer than k samples are wrong.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.

    >>> pass_at_k(n=4, c=1, k=2)
    0.5
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, c={c}, k={k}: need 0 <= c <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def clip_fractions(
    ratio_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor | None = None,
    low: Tensor | float = 0.2,
    high: Tensor | float = 0.2,
) -> dict[str, Tensor]:
    """Shares of tokens whose gradient PPO's clip removes.

    Above the range with A > 0 ("clip_high"), below it with A < 0 ("clip_low"), and both together
    ("clip_fraction").

    Args:
        ratio_BT: (B, T) importance ratios pi / pi_old.
        advantages: (B, T) or (B,).
        mask_BT: (B, T) trained tokens; None for all.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.

    Returns:
        {"clip_fraction", "clip_high", "clip_low"}: scalars, shares of the kept tokens.

    Raises:
        ValueError: for shapes that differ.

    >>> clip_fractions(torch.tensor([[2.0, 0.5, 2.0, 1.0]]), torch.tensor([1.0]))
    {'clip_fraction': tensor(0.5000), 'clip_high': tensor(0.5000), 'clip_low': tensor(0.)}
    """
    check_shapes("BT", ratio_BT=ratio_BT)
    kept_BT = kept_tokens(mask_BT, ratio_BT, "ratio_BT")
    _, metrics = clipped_ratio_loss(
        ratio_BT.detach(), per_token(advantages, ratio_BT, "advantages").detach(), low, high
    )
    return {name: masked_mean(metrics[name], kept_BT) for name in ("clip_fraction", "clip_high", "clip_low")}
