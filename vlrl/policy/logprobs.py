"""Log-probs, and whatever else is read from the policy's distribution, without a (tokens x vocabulary) tensor.

Shape legend: N completion tokens, H hidden size, V vocabulary, K numbers per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from vlrl.stages import AuxTensor


BLOCK = 1 << 18  # numbers that stay in a CPU's cache while several passes go over them


def score_tokens(head: Callable[[Tensor], Tensor], hidden_NH: Tensor, ids_N: Tensor, temperature_N: Tensor, fields: Sequence[AuxTensor] = (),
                 chunk: int = 1024) -> dict[str, Tensor]:  # fmt: skip
    """{"logp": (N,), field name: (N,) or (N, K)} of tokens `ids_N` given the hidden states that predict them.

    Logits are divided by the temperature (0, greedy, counts as 1) and taken in float32; `chunk` tokens at a time. All chunks but the last are
    recomputed in the backward pass, which begins with the last: keeping that one costs no memory at the peak.
    """
    temperature_N = torch.where(temperature_N > 0, temperature_N, torch.ones_like(temperature_N))
    plain = bool((temperature_N == 1).all())

    def part(hidden: Tensor, ids: Tensor, temperature: Tensor) -> tuple[Tensor, ...]:
        logits = head(hidden).float()
        logits = logits if plain else logits / temperature[:, None]
        logp = TokenLogp.apply(logits, ids)
        return logp, *(f.from_hidden(hidden, ids) if f.reads_hidden else f.from_logits(logits, ids) for f in fields)

    recompute = torch.is_grad_enabled() and hidden_NH.requires_grad
    count = len(ids_N)
    begins = [0, *range(count % chunk or chunk, count, chunk)]  # the odd chunk comes first: the one that is kept is a whole one
    parts = []
    for start, end in zip(begins, [*begins[1:], count]):
        args = [x[start:end] for x in (hidden_NH, ids_N, temperature_N)]
        parts.append(checkpoint(part, *args, use_reentrant=False) if recompute and end < count else part(*args))
    return {name: torch.cat(column) for name, column in zip(["logp", *(f.name for f in fields)], zip(*parts))}


class TokenLogp(torch.autograd.Function):
    """log softmax(logits)_id = logits_id - logsumexp(logits), (N,). Its gradient, g (1[v = id] - softmax(logits)_v), is made in one new tensor."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, ids_N: Tensor) -> Tensor:  # type: ignore[override]
        total_N = torch.cat([rows.logsumexp(-1) for rows in logits_NV.split(_rows(logits_NV))])
        ctx.save_for_backward(logits_NV, ids_N, total_N)
        return logits_NV.gather(-1, ids_N[:, None])[:, 0] - total_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        logits_NV, ids_N, total_N = ctx.saved_tensors
        out_NV = torch.empty_like(logits_NV)
        size = _rows(logits_NV)
        for out, logits, ids, total, grad in zip(*(x.split(size) for x in (out_NV, logits_NV, ids_N, total_N, grad_N))):
            torch.sub(logits, total[:, None], out=out).exp_().mul_(-grad[:, None])
            out.scatter_add_(-1, ids[:, None], grad[:, None])
        return out_NV, None


def _rows(logits_NV: Tensor) -> int:
    """Rows that are worked on together."""
    count, width = logits_NV.shape
    return max(1, BLOCK // width if logits_NV.device.type == "cpu" else count)
