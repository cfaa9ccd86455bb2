"""Log-probs, and whatever else is read from the policy's distribution, without a (tokens x vocabulary) tensor.

Shape legend: N completion tokens, H hidden size, V vocabulary, K numbers per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from vlrl.stages import Field


def score_tokens(head: Callable[[Tensor], Tensor], hidden_NH: Tensor, ids_N: Tensor, temperature_N: Tensor, fields: Sequence[Field] = (),
                 chunk: int = 1024) -> dict[str, Tensor]:  # fmt: skip
    """{"logp": (N,), field name: (N,) or (N, K)} of tokens `ids_N` given the hidden states that predict them.

    Logits are divided by the temperature (0, greedy, counts as 1) and taken in float32; `chunk` tokens at a time, recomputed in the backward pass.
    """
    temperature_N = torch.where(temperature_N > 0, temperature_N, torch.ones_like(temperature_N))

    def part(hidden: Tensor, ids: Tensor, temperature: Tensor) -> tuple[Tensor, ...]:
        logits = head(hidden).float() / temperature[:, None]
        logp = logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(-1)
        return logp, *(f.from_hidden(hidden, ids) if f.reads_hidden else f.from_logits(logits, ids) for f in fields)

    recompute = torch.is_grad_enabled() and hidden_NH.requires_grad
    parts = []
    for start in range(0, max(len(ids_N), 1), chunk):
        args = [x[start : start + chunk] for x in (hidden_NH, ids_N, temperature_N)]
        parts.append(checkpoint(part, *args, use_reentrant=False) if recompute else part(*args))
    return {name: torch.cat(column) for name, column in zip(["logp", *(f.name for f in fields)], zip(*parts))}
