"""Divergences between a student and its teacher: exact ones over outcomes, and unbiased ones from sampled
tokens; the spans that two tokenizers share.

    reverse   KL(pi || T) = sum_v pi_v (log pi_v - log T_v)
    forward   KL(T || pi)
    jsd       beta KL(T || M) + (1 - beta) KL(pi || M),   M = beta T + (1 - beta) pi

Shape legend: ... any leading dimensions, V outcomes (the vocabulary, or its k most likely tokens and the
rest).
"""

from __future__ import annotations

import itertools
import math

from vlrl.functional.checks import check_choice
from vlrl.services.lazy import Tensor, torch

DIVERGENCES = ("reverse", "forward", "jsd")
MIN_LOGP = -50.0  # nats: what a log-prob of a teacher counts as at least, so that no divergence is infinite


def divergence(logp_V: Tensor, teacher_V: Tensor, kind: str = "reverse", beta: float = 0.5) -> Tensor:
    """The divergence of two distributions over the same outcomes, summed exactly.

    Paper: Agarwal et al. 2024 (GKD), arXiv:2306.13649, eq. 1 and sec. 3; over beta the jsd tends to the
    forward KL as beta goes to 0, over 1 - beta to the reverse one as beta goes to 1. Edge: an outcome of
    probability 0 on the side that weighs it adds 0; a log-prob counts as at least -50 nats where the other
    side's probability is above 0.

    Args:
        logp_V: (..., V) log-probs of the student, with gradient.
        teacher_V: (..., V) log-probs of the teacher; detached.
        kind: "reverse", "forward" or "jsd".
        beta: the teacher's share in the mixture, between 0 and 1; of jsd alone.

    Returns:
        (...) nats.

    Raises:
        ValueError: for shapes that differ, an unknown kind, and a beta that is not between 0 and 1.

    >>> half, sure = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    >>> [round(divergence(half, sure, kind).item(), 4) for kind in ("reverse", "forward", "jsd")]
    [0.5108, 0.3681, 0.1017]
    """
    _check(kind, beta, logp_V=logp_V, teacher_V=teacher_V)
    teacher_V = teacher_V.detach()
    gone_V = torch.isneginf(logp_V) & torch.isneginf(teacher_V)  # possible for neither
    own_V = logp_V.clamp(min=MIN_LOGP).masked_fill(gone_V, 0.0)
    other_V = teacher_V.clamp(min=MIN_LOGP).masked_fill(gone_V, 0.0)
    p_V, t_V = logp_V.exp(), teacher_V.exp()
    if kind == "reverse":
        return (p_V * (own_V - other_V)).sum(-1)
    if kind == "forward":
        return (t_V * (other_V - own_V)).sum(-1)
    mixed_V = torch.logaddexp(own_V + _log(1 - beta), other_V + _log(beta))
    return (beta * t_V * (other_V - mixed_V) + (1 - beta) * p_V * (own_V - mixed_V)).sum(-1)


def sampled_divergence(
    logp: Tensor, teacher: Tensor, kind: str = "reverse", beta: float = 0.5, clamp_log: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The divergence from tokens that the student drew: its estimate, and the factor of d log pi in its
    gradient.

        D_f = E_pi[f(r)],  r = T / pi;   d D_f = E_pi[(f(r) - r f'(r)) d log pi]
        estimate f(r) - f'(1) (r - 1), never negative;  factor f(r) - r f'(r) + f'(1), 0 at r = 1

        reverse  f = -log r       estimate r - 1 - log r (k3)             factor -log r (k2's gradient)
        forward  f = r log r      estimate r log r - r + 1                factor 1 - r
        jsd      f = beta r log(r / m) - (1 - beta) log m,  m = beta r + 1 - beta;   factor -(1 - beta) log m

    Both are unbiased for tokens drawn from pi itself. Source: f-divergences as Monte Carlo estimates,
    Schulman 2020, joschu.net/blog/kl-approx.html; the factor is the derivative under the sum.

    Args:
        logp, teacher: (...) log-probs of the drawn tokens; both are read without gradient.
        kind, beta: as in `divergence`.
        clamp_log: bounds log r to [-clamp_log, clamp_log]; 0 for no bound.

    Returns:
        (...) the estimate in nats, (...) the factor.

    Raises:
        ValueError: for shapes that differ, an unknown kind, and a beta that is not between 0 and 1.

    >>> estimate, factor = sampled_divergence(torch.tensor(-1.0), torch.tensor(-0.5))
    >>> round(estimate.item(), 4), round(factor.item(), 4)
    (0.1487, -0.5)
    """
    _check(kind, beta, logp=logp, teacher=teacher)
    u = teacher.detach() - logp.detach()
    u = u.clamp(-clamp_log, clamp_log) if clamp_log else u
    if kind == "reverse":
        return torch.expm1(u) - u, -u
    if kind == "forward":
        return u.exp() * u - torch.expm1(u), -torch.expm1(u)
    log_m = torch.logaddexp(u + _log(beta), torch.full_like(u, _log(1 - beta)))
    return beta * u.exp() * (u - log_m) - (1 - beta) * log_m, -(1 - beta) * log_m


def with_gradient(value: Tensor, factor: Tensor, logp: Tensor) -> Tensor:
    """A loss with the value of an estimate and the gradient factor * d log pi.

    Args:
        value, factor: (...) what `sampled_divergence` returns; both are detached.
        logp: (...) log-probs of the drawn tokens, with gradient.

    Returns:
        (...) the loss: `value`, whose gradient is `factor` times that of `logp`.

    Raises:
        ValueError: for shapes that differ.

    >>> logp = torch.tensor(-1.0, requires_grad=True)
    >>> with_gradient(torch.tensor(2.0), torch.tensor(3.0), logp).backward()
    >>> logp.grad.item()
    3.0
    """
    _check_equal(value=value, factor=factor, logp=logp)
    return value.detach() + factor.detach() * (logp - logp.detach())


def top_and_rest(logits_NV: Tensor, ids_NK: Tensor) -> Tensor:
    """Log-probs of the named tokens, and of all others together.

    The rest is summed from the logits, not as 1 less the others, so that it has a gradient where it is tiny.
    Edge: an id below 0 names no token and has -inf.

    Args:
        logits_NV: (N, V) logits, with gradient.
        ids_NK: (N, K) the named tokens of each place.

    Returns:
        (N, K + 1) log-probs in nats; the last, of all others, is -inf where there is none.

    Raises:
        ValueError: for shapes that do not match.

    >>> top_and_rest(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[2, 0]])).exp()
    tensor([[0.2000, 0.5000, 0.3000]])
    """
    if logits_NV.dim() != 2 or ids_NK.dim() != 2 or len(logits_NV) != len(ids_NK):
        raise ValueError(
            f"ids_NK has shape {tuple(ids_NK.shape)}, logits_NV {tuple(logits_NV.shape)}; they must be "
            "(N, K) and (N, V)"
        )
    total_N1 = logits_NV.logsumexp(-1, keepdim=True)
    named_NK = ids_NK >= 0
    top_NK = logits_NV.gather(-1, ids_NK.clamp(min=0)).masked_fill(~named_NK, float("-inf"))
    ids_NK = torch.where(named_NK, ids_NK, ids_NK.max(-1, keepdim=True).values.clamp(min=0))
    kept_NV = torch.ones_like(logits_NV, dtype=torch.bool)
    kept_NV = kept_NV.scatter(-1, ids_NK, ~named_NK.any(-1, keepdim=True).expand_as(ids_NK))
    kept_NV &= ~torch.isneginf(logits_NV)
    some_N1 = kept_NV.any(-1, keepdim=True)
    others_NV = torch.where(some_N1, logits_NV.masked_fill(~kept_NV, float("-inf")), 0.0)
    rest_N1 = torch.where(some_N1, others_NV.logsumexp(-1, keepdim=True) - total_N1, float("-inf"))
    return torch.cat([top_NK - total_N1, rest_N1], dim=-1)


def shared_spans(first: list[int | None], second: list[int | None]) -> list[tuple[range, range]]:
    """The shortest spans of two token sequences that hold the same text.

    Args:
        first, second: per token the number of characters (or bytes) of the text up to its end; None within a
            character, where no span ends.

    Returns:
        (places in the first, places in the second) per span, in order; what stands behind the last common end
        is left out.

    Raises:
        ValueError: where the ends of a sequence decrease.

    >>> shared_spans([2, 5, 6], [1, 2, 6])
    [(range(0, 1), range(0, 2)), (range(1, 3), range(2, 3))]
    """
    _check_ends("first", first)
    _check_ends("second", second)
    ends = {end: place for place, end in enumerate(second) if end is not None}
    spans, start, other = [], 0, 0
    for place, end in enumerate(first):
        if end in ends and ends[end] >= other:
            spans.append((range(start, place + 1), range(other, ends[end] + 1)))
            start, other = place + 1, ends[end] + 1
    return spans


def _log(value: float) -> float:
    return math.log(value)


def _check(kind: str, beta: float, **tensors: Tensor) -> None:
    check_choice("kind", kind, DIVERGENCES)
    _check_equal(**tensors)
    if not 0 < beta < 1:
        raise ValueError(
            f"beta={beta} must be above 0 and below 1; its ends are the kinds forward and reverse"
        )


def _check_equal(**tensors: Tensor) -> None:
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, {first} {tuple(reference.shape)}; they must "
                "be equal"
            )


def _check_ends(argument: str, ends: list[int | None]) -> None:
    known = [end for end in ends if end is not None]
    if any(later < earlier for earlier, later in itertools.pairwise(known)):
        raise ValueError(f"{argument}={ends} decreases; it must hold the ends of tokens in their order")
