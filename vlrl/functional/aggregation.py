"""From losses per token to one number: token mean, token sum, sequence mean, constant divisor, prompt mean.

Shape legend: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vlrl.functional.checks import check_groups, check_shapes, choose, kept_tokens, lengths
from vlrl.services.lazy import Tensor, torch


def group_sum(value_B: Tensor, group_B: Tensor) -> Tensor:
    """The sum over each rollout's group.

    Args:
        value_B: (B,) numbers.
        group_B: (B,) group ids, 0 to the number of groups - 1.

    Returns:
        (B,): for every rollout the sum over its group.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> group_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 1]))
    tensor([3., 3., 5.])
    """
    check_groups(group_B)
    check_shapes("B", group_B=group_B, value_B=value_B)
    totals_G = value_B.new_zeros(int(group_B.max()) + 1).index_add(0, group_B, value_B)
    return totals_G[group_B]


def group_mean(value_B: Tensor, group_B: Tensor) -> Tensor:
    """The mean over each rollout's group.

    Args:
        value_B: (B,) numbers.
        group_B: (B,) group ids, 0 to the number of groups - 1.

    Returns:
        (B,): for every rollout the mean over its group.

    Raises:
        ValueError: for shapes that differ, or group ids that are not integers.

    >>> group_mean(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 1]))
    tensor([1.5000, 1.5000, 5.0000])
    """
    return group_sum(value_B, group_B) / group_sum(torch.ones_like(value_B), group_B)


def masked_mean(values: Tensor, mask: Tensor | None = None, dim: int | None = None) -> Tensor:
    """The mean of the entries that a mask keeps; 0 where it keeps none.

    Args:
        values: any shape.
        mask: the same shape, 1 or True on entries that count; None for all. Entries outside it may be inf or
            nan.
        dim: the dimension to average over; None for all.

    Returns:
        A scalar, or `values` without dimension `dim`.

    Raises:
        ValueError: for shapes that differ.

    >>> masked_mean(torch.tensor([[1.0, 3.0], [5.0, float("nan")]]), torch.tensor([[1, 1], [1, 0]]), dim=1)
    tensor([2., 5.])
    """
    if mask is not None and mask.shape != values.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, values {tuple(values.shape)}; both must be equal"
        )
    kept = torch.ones_like(values, dtype=torch.bool) if mask is None else mask > 0
    total, count = torch.where(kept, values, 0.0), kept.to(values.dtype)
    if dim is None:
        return total.sum() / count.sum().clamp(min=1)
    return total.sum(dim) / count.sum(dim).clamp(min=1)


@dataclass(frozen=True)
class Counts:
    """What the aggregation modes divide by."""

    kept_BT: Tensor
    length_B: Tensor  # tokens of each sequence, at least 1
    tokens: float
    sequences: float
    prompts: float | None
    length: float | None
    group_B: Tensor | None


def _token_mean(n: Counts) -> Tensor:
    return torch.full_like(n.length_B, 1.0 / max(n.tokens, 1.0))


def _token_sum(n: Counts) -> Tensor:
    return torch.ones_like(n.length_B)


def _sequence_mean(n: Counts) -> Tensor:
    return 1.0 / (n.length_B * max(n.sequences, 1.0))


def _sequence_mean_sum(n: Counts) -> Tensor:
    return 1.0 / n.length_B


def _constant(n: Counts) -> Tensor:
    if n.length is None or n.length <= 0:
        raise ValueError(
            f"length={n.length}; mode='constant' needs a positive number of tokens, for instance the "
            "longest completion"
        )
    return torch.full_like(n.length_B, 1.0 / (max(n.sequences, 1.0) * n.length))


def _prompt_mean(n: Counts) -> Tensor:
    if n.group_B is None:
        raise ValueError("group_B=None; mode='prompt_mean' needs the (B,) prompt ids of the sequences")
    ids, place_B = n.group_B.unique(return_inverse=True)
    tokens_B = group_sum(n.kept_BT.to(n.length_B.dtype).sum(-1), place_B).clamp(min=1)
    return 1.0 / (tokens_B * (len(ids) if n.prompts is None else max(n.prompts, 1.0)))


AGGREGATIONS: dict[str, Callable[[Counts], Tensor]] = {
    "token_mean": _token_mean,
    "token_sum": _token_sum,
    "sequence_mean": _sequence_mean,
    "sequence_mean_sum": _sequence_mean_sum,
    "constant": _constant,
    "prompt_mean": _prompt_mean,
}


def aggregation_weights(
    mask_BT: Tensor,
    mode: str = "token_mean",
    *,
    tokens: float | None = None,
    sequences: float | None = None,
    prompts: float | None = None,
    length: float | None = None,
    group_B: Tensor | None = None,
) -> Tensor:
    """Weights of the loss aggregation modes: the aggregated loss is the sum over the mask of weight times
    loss.

        mode                  weight of a token of sequence i        used by
        "token_mean"          1 / tokens                             DAPO, arXiv:2503.14476, eq. 12, sec. 3.3
        "token_sum"           1                                      verl 1dda039b, core_algos.agg_loss
        "sequence_mean"       1 / (n_i sequences)                    GRPO, arXiv:2402.03300, eq. 3
        "constant"            1 / (length sequences)                 Dr.GRPO, arXiv:2503.20783, sec. 3.2;
                                                                     length 1: LUSPO
        "sequence_mean_sum"   1 / n_i                                DCPO, arXiv:2509.02333, eq. 12
        "prompt_mean"         1 / (tokens of i's prompt * prompts)   ScaleRL, arXiv:2510.13786, sec. 3.2

    n_i is a sequence's number of kept tokens, at least 1. Sequences without kept tokens are not counted: a
    mean is over what is trained on, as in verl (agg_loss) and OpenRLHF 3c3be623 (openrlhf/models/loss.py,
    aggregate_loss). With the totals of a whole optimizer step in `tokens`, `sequences` and `prompts`,
    micro-batches of whole prompts add up to the whole step, however it is split.

    Args:
        mask_BT: (B, T) 1 or True on trained tokens.
        mode: one of the table.
        tokens: trained tokens of the step; None counts those of `mask_BT`.
        sequences: sequences of the step that have trained tokens; None counts those of `mask_BT`.
        prompts: prompts of the step, of mode "prompt_mean"; None counts the ids in `group_B`.
        length: tokens of mode "constant".
        group_B: (B,) integer prompt ids of mode "prompt_mean".

    Returns:
        (B, 1) weights, without gradient, in the mask's dtype (float32 for a mask of bools or integers).

    Raises:
        ValueError: for an unknown mode, or a missing length or group_B.

    >>> aggregation_weights(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), "sequence_mean")
    tensor([[0.2500],
            [0.5000]])
    """
    weigh = choose("mode", mode, AGGREGATIONS)
    check_shapes("BT", mask_BT=mask_BT)
    kept_BT = mask_BT > 0
    dtype = mask_BT.dtype if mask_BT.is_floating_point() else torch.float32
    counted = float(kept_BT.sum()) if tokens is None and mode == "token_mean" else tokens or 0.0
    rows = float(kept_BT.any(-1).sum()) if sequences is None else sequences
    return weigh(Counts(kept_BT, lengths(kept_BT, dtype), counted, rows, prompts, length, group_B))[:, None]


def aggregate(
    loss: Tensor,
    mask_BT: Tensor | None = None,
    mode: str = "token_mean",
    *,
    weights: Tensor | None = None,
    tokens: float | None = None,
    sequences: float | None = None,
    prompts: float | None = None,
    length: float | None = None,
    group_B: Tensor | None = None,
) -> Tensor:
    """Loss aggregation: losses per token, or per sequence, to the scalar that `backward` starts from.

    The modes are those of `aggregation_weights`. A (B,) loss per sequence is averaged over the sequences that
    have trained tokens, whatever the mode.

    Args:
        loss: (B, T) per token, or (B,) per sequence.
        mask_BT: (B, T) 1 or True on trained tokens; None for all. Losses outside it may be inf or nan.
        mode: "token_mean", "token_sum", "sequence_mean", "sequence_mean_sum", "constant" or "prompt_mean".
        weights: (B, T) or (B, 1) factors on the loss per token, for instance of `importance_weights`;
            detached.
        tokens: trained tokens of the whole step; None counts those of `mask_BT`.
        sequences: sequences of the whole step that have trained tokens; None counts those of `mask_BT`.
        prompts: prompts of the whole step; None counts the ids in `group_B`.
        length: tokens of mode "constant".
        group_B: (B,) prompt ids of mode "prompt_mean".

    Returns:
        A scalar.

    Raises:
        ValueError: for an unknown mode, shapes that differ, or a missing length or group_B.

    >>> loss, mask = torch.tensor([[1.0, 2.0], [6.0, float("inf")]]), torch.tensor([[1, 1], [1, 0]])
    >>> aggregate(loss, mask), aggregate(loss, mask, "sequence_mean"), aggregate(loss, mask, "constant",
    ... length=3)
    (tensor(3.), tensor(3.7500), tensor(1.5000))
    """
    if loss.dim() == 1:
        choose("mode", mode, AGGREGATIONS)
        return _aggregate_sequences(loss, mask_BT, weights, sequences)
    kept_BT = kept_tokens(mask_BT, loss, "loss")
    mask = kept_BT.to(loss.dtype)
    scale = aggregation_weights(
        mask, mode, tokens=tokens, sequences=sequences, prompts=prompts, length=length, group_B=group_B
    )
    factor = torch.ones_like(mask) if weights is None else torch.ones_like(mask) * weights.detach()
    # where() and not a product: a masked token's infinity must not become NaN
    return torch.where(kept_BT, scale * factor * loss, torch.zeros_like(loss)).sum()


def _aggregate_sequences(
    loss_B: Tensor, mask_BT: Tensor | None, weights: Tensor | None, sequences: float | None
) -> Tensor:
    """The mean over sequences with tokens; a sequence's factor is the mean of its tokens' weights, 0 without
    tokens."""
    if mask_BT is None:
        mask_BT = torch.ones_like(loss_B)[:, None]
    if mask_BT.dim() != 2 or len(mask_BT) != len(loss_B):
        raise ValueError(
            f"mask_BT has shape {tuple(mask_BT.shape)}; it must be (B, T) with B = {len(loss_B)}, the "
            "length of loss"
        )
    mask = (mask_BT > 0).to(loss_B.dtype)
    factor = torch.ones_like(mask) if weights is None else torch.ones_like(mask) * weights.detach()
    factor_B = torch.where(mask > 0, factor, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
    count = float((mask > 0).any(-1).sum()) if sequences is None else sequences
    return torch.where(factor_B != 0, loss_B * factor_B, 0.0).sum() / max(count, 1.0)
