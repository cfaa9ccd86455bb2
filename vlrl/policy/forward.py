"""The forward pass from token rows and media to log-probs, without a (tokens x vocabulary) tensor.

Shape legend: R rows, L tokens of a row, H hidden size, N scored completion tokens, V vocabulary, K numbers
per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vlrl.services.lazy import Tensor, torch

if TYPE_CHECKING:
    from vlrl.plugins.stages import AuxTensor


def needs_logits_graph(aux: AuxTensor) -> bool:
    """Whether a gradient flows through the tensor's values into the logits."""
    return torch.is_grad_enabled() and not (aux.reads_hidden or aux.no_grad)


def score_by_weight(
    weight_VH: Tensor,
    hidden_NH: Tensor,
    ids_N: Tensor,
    temperature_N: Tensor,
    aux_tensors: Sequence[AuxTensor] = (),
    forbidden_ids: Sequence[int] = (),
    chunk: int = 1024,
) -> dict[str, Tensor]:
    """`score_tokens` for an output layer that is one float32 matrix on a CPU, through `HeadLogp`.

    It keeps the probabilities of 2 `chunk` tokens, in place of the logits of `chunk` tokens and their
    gradient.
    """
    from vlrl.policy.autograd import HeadLogp

    temperature_N = torch.where(temperature_N > 0, temperature_N, torch.ones_like(temperature_N))
    by_logits = [aux for aux in aux_tensors if not aux.reads_hidden]
    logged = [aux.from_logits for aux in by_logits]
    logp_N, *values = HeadLogp.apply(
        hidden_NH, weight_VH, ids_N, temperature_N, forbidden_ids, 2 * chunk, logged
    )
    out = {"logp": logp_N, **{aux.name: value for aux, value in zip(by_logits, values)}}
    return out | {aux.name: aux.from_hidden(hidden_NH, ids_N) for aux in aux_tensors if aux.reads_hidden}


def score_tokens(
    head: Callable[[Tensor], Tensor],
    hidden_NH: Tensor,
    ids_N: Tensor,
    temperature_N: Tensor,
    aux_tensors: Sequence[AuxTensor] = (),
    chunk: int = 1024,
) -> dict[str, Tensor]:
    """{"logp": (N,), aux tensor name: (N,) or (N, K)} of tokens `ids_N`, given the hidden states that predict
    them.

    Logits are computed for `chunk` tokens at a time, in float32, divided by the temperature (0, greedy,
    counts as 1). All chunks but the last are recomputed in the backward pass. The backward pass begins with
    the last chunk, so keeping its logits does not raise the memory peak.
    """
    from vlrl.policy.autograd import TokenLogp

    temperature_N = torch.where(temperature_N > 0, temperature_N, torch.ones_like(temperature_N))
    unscaled = bool((temperature_N == 1).all())

    def score_chunk(hidden: Tensor, ids: Tensor, temperature: Tensor) -> tuple[Tensor, ...]:
        logits = head(hidden).float()
        logits = logits if unscaled else logits / temperature[:, None]
        logp = TokenLogp.apply(logits, ids)
        return logp, *(
            aux.from_hidden(hidden, ids) if aux.reads_hidden else aux.from_logits(logits, ids)
            for aux in aux_tensors
        )

    recompute = torch.is_grad_enabled() and hidden_NH.requires_grad
    count = len(ids_N)
    begins = [
        0,
        *range(count % chunk or chunk, count, chunk),
    ]  # the first chunk has the odd size, because the last one is kept
    parts = []
    for start, end in zip(begins, [*begins[1:], count]):
        args = [x[start:end] for x in (hidden_NH, ids_N, temperature_N)]
        parts.append(
            torch.utils.checkpoint.checkpoint(score_chunk, *args, use_reentrant=False)
            if recompute and end < count
            else score_chunk(*args)
        )
    return {
        name: torch.cat(column)
        for name, column in zip(["logp", *(aux.name for aux in aux_tensors)], zip(*parts))
    }


def once(
    source_N: Tensor, ids_N: Tensor, temperature_N: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The scored tokens without repetitions: a token that several completions share is predicted from the
    same hidden state.

    Returns source, ids and temperature of the distinct tokens, and for each of the N the number of its own
    among them (None: all are distinct).
    """
    places = source_N.unique()
    if len(places) == len(source_N):
        return source_N, ids_N, temperature_N, None
    told_3N = torch.stack([source_N, ids_N, temperature_N.contiguous().view(torch.int32).long()])
    distinct_3N, copies_N = told_3N.unique(dim=1, return_inverse=True)
    if distinct_3N.shape[1] == len(source_N):
        return source_N, ids_N, temperature_N, None
    return distinct_3N[0], distinct_3N[1], distinct_3N[2].int().view(torch.float32), copies_N


def scatter_to_BT(value: Tensor, target_N: Tensor, shape: torch.Size) -> Tensor:
    """(N, ...) to (B, T, ...), zero for tokens that were not scored."""
    flat_BT = value.new_zeros(shape.numel(), *value.shape[1:])
    return flat_BT.index_copy(0, target_N, value).view(*shape, *value.shape[1:])
