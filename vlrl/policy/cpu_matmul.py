"""Matrix products and log-probs of the output layer in float32 on a CPU.

torch multiplies float32 matrices with MKL, which runs its AVX-512 code on Intel's processors only. oneDNN,
which torch holds too, goes by the processor's instructions: on an AMD EPYC with AVX-512 its products are
about twice as fast (docs/benchmarks.md), with float32 sums as before. It takes MKL's place in the linear
layers of the policy there; `torch.backends.mkldnn.flags(enabled=False)` gives torch's own products back.

Shape legend: N rows, I inputs, O outputs of a layer, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MIN_PRODUCTS = 1 << 18  # multiplications: below, the call itself takes longer
MIN_PACKED_PRODUCTS = 1 << 19  # the same for weights in oneDNN's own order, against MKL's product
BLOCK_NUMBERS = 1 << 22  # logits that are in work at a time: 16 MiB


@cache
def onednn_is_faster() -> bool:
    """Whether this processor runs oneDNN's float32 products faster than MKL's: it has AVX-512, and Intel did
    not make it."""
    info = Path("/proc/cpuinfo")
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and info.is_file()):
        return False
    text = info.read_text(encoding="utf-8", errors="replace")
    return "GenuineIntel" not in text and "avx512f" in text and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def plain_float(*tensors: Tensor) -> bool:
    """Whether these are float32 tensors on a CPU, outside of autocast."""
    return all(
        x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors
    ) and not torch.is_autocast_enabled("cpu")


def is_whole(weight: Tensor) -> bool:
    """Whether a weight is a plain parameter, no share of one (DTensor, ZeRO-3)."""
    return type(weight) is nn.Parameter and not hasattr(weight, "ds_id")


def applies(*tensors: Tensor) -> bool:
    """Whether oneDNN's product takes the place of torch's for these tensors."""
    return plain_float(*tensors) and bool(torch.backends.mkldnn.enabled) and onednn_is_faster()


def product(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x W^T + b, (N, O), without gradient; small products by torch."""
    if x_NI.numel() * weight_OI.shape[0] >= MIN_PRODUCTS and applies(x_NI, weight_OI):
        return torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return nn.functional.linear(x_NI, weight_OI, bias_O)


class _Product(torch.autograd.Function):
    """x W^T + b with its gradients g W, g^T x and sum_n g_n."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        return product(x_NI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_NO,) = grads
        x_NI, weight_OI = ctx.saved_tensors
        grad_x = product(grad_NO, weight_OI.t()) if ctx.needs_input_grad[0] else None
        grad_weight = product(grad_NO.t(), x_NI.t()) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_NO.sum(0) if ctx.needs_input_grad[2] else None


class CPULinear(nn.Linear):
    """torch's linear layer with `product` in place of MKL's."""

    def forward(self, input: Tensor) -> Tensor:
        """x W^T + b. Sharded weights (DTensor, ZeRO-3) and small products take torch's way; see also
        `packed_weights`."""
        packed = _packed.get().get(self)
        if (
            packed is not None
            and not torch.is_grad_enabled()
            and input.numel() * self.out_features >= MIN_PACKED_PRODUCTS
        ):
            return torch.ops.mkldnn._linear_pointwise(input, packed, self.bias, "none", [], "")
        weight = self.weight
        if (
            not is_whole(weight)
            or input.numel() * self.out_features < MIN_PRODUCTS
            or not applies(input, weight)
        ):
            return super().forward(input)
        flat_NI = input.reshape(-1, self.in_features)
        graph = torch.is_grad_enabled() and (
            flat_NI.requires_grad or any(p.requires_grad for p in self.parameters(recurse=False))
        )
        out_NO = _Product.apply(flat_NI, weight, self.bias) if graph else product(flat_NI, weight, self.bias)
        return out_NO.view(*input.shape[:-1], self.out_features)


_packed: ContextVar[Mapping[nn.Module, Tensor]] = ContextVar("packed", default=MappingProxyType({}))


def pack(model: nn.Module) -> dict[nn.Module, Tensor]:
    """The trained weights of the model's linear layers, copied into the order in which oneDNN multiplies
    them; for `packed_weights`.

    A product of few rows takes half the time with such a copy: without it, oneDNN makes one in every call.
    Frozen weights (the base of an adapter) are left out. A trained one has a gradient of its size, which is
    not held while the policy samples, so that the copy does not raise the peak. Empty where oneDNN's product
    does not apply (other types, devices and processors, sharded weights).
    """
    layers = [m for m in model.modules() if type(m) is CPULinear and is_whole(m.weight)]
    return {
        m: torch.ops.mkldnn._reorder_linear_weight(m.weight.detach(), 64)
        for m in layers
        if m.weight.requires_grad and applies(m.weight)
    }


@contextmanager
def packed_weights(packed: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Inside, forwards without gradient multiply with these copies of weights, which must be those of the
    weights as they are."""
    token = _packed.set(packed)
    try:
        yield
    finally:
        _packed.reset(token)


def install(model: nn.Module) -> int:
    """Turn the model's linear layers into `CPULinear` where oneDNN is faster; returns how many."""
    layers = [module for module in model.modules() if type(module) is nn.Linear] if onednn_is_faster() else []
    for layer in layers:
        layer.__class__ = CPULinear
    return len(layers)


# --- the output layer ---------------------------------------------------------------------------------------


class HeadLogp(torch.autograd.Function):
    """log softmax(h W^T / t)_id of N tokens, (N,), and values that are only logged, for an output layer that
    is one matrix in float32.

    With p = softmax(h W^T / t) and the gradient g of a log-prob:

        dh = (g / t) (W_id - p W),   dW = sum_n (g_n / t_n) (1[v = id_n] - p_nv) h_n

    p takes the place of the logits as soon as they are made, so that neither the exponentials nor a gradient
    of the logits is computed in the backward pass. The probabilities of the last `kept` tokens stay in
    memory; those of the tokens before are computed again, `kept` at a time.

    Args:
        forbidden: Ids of probability 0.
        logged: Functions of (logits, ids) whose values carry no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        ids_N: Tensor,
        temperature_N: Tensor,
        forbidden: Sequence[int],
        kept: int,
        logged: Sequence[Callable[[Tensor, Tensor], Tensor]],
    ) -> tuple[Tensor, ...]:
        graph = any(ctx.needs_input_grad[:2])
        first = (
            (len(ids_N) - 1) // kept * kept if graph else len(ids_N)
        )  # the tokens from here on keep their probabilities
        held_NV = weight_VH.new_empty(len(ids_N) - first, len(weight_VH))
        columns: list[list[Tensor]] = [[] for _ in range(1 + len(logged))]
        for rows in _blocks(0, first, len(weight_VH)) + _blocks(first, len(ids_N), len(weight_VH)):
            logits = _logits(hidden_NH[rows], weight_VH, temperature_N[rows], forbidden)
            for column, function in zip(columns[1:], logged):
                column.append(function(logits, ids_N[rows]))
            highest = logits.amax(-1)
            picked = logits.gather(-1, ids_N[rows, None])[:, 0]
            place = logits if rows.start < first else held_NV[rows.start - first : rows.stop - first]
            torch.softmax(logits, -1, out=place)
            columns[0].append(
                picked - highest + place.amax(-1).log()
            )  # the largest probability is e^(highest - logsumexp)
        ctx.save_for_backward(hidden_NH, weight_VH, ids_N, temperature_N)
        ctx.how, ctx.held = (forbidden, kept, first), held_NV
        out = tuple(torch.cat(column) for column in columns)
        ctx.mark_non_differentiable(*out[1:])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, ids_N, temperature_N = ctx.saved_tensors
        forbidden, kept, first = ctx.how
        scale_N1 = (grads[0] / temperature_N)[:, None]
        grad_hidden = torch.empty_like(hidden_NH) if ctx.needs_input_grad[0] else None
        grad_weight_HV: Tensor | None = None
        held_NV, ctx.held = ctx.held, None  # None: this backward pass is not the first
        for start in range(first, -1, -kept):
            part = slice(start, min(start + kept, len(ids_N)))
            if held_NV is None:
                held_NV = weight_VH.new_empty(part.stop - start, len(weight_VH))
                for rows in _blocks(start, part.stop, len(weight_VH)):
                    logits = _logits(hidden_NH[rows], weight_VH, temperature_N[rows], forbidden)
                    torch.softmax(logits, -1, out=held_NV[rows.start - start : rows.stop - start])
            held_NV.scatter_add_(
                -1, ids_N[part, None], held_NV.new_full((len(held_NV), 1), -1.0)
            )  # p - 1[v = id]
            if grad_hidden is not None:
                grad_hidden[part] = product(held_NV, weight_VH.t()).mul_(-scale_N1[part])
            if ctx.needs_input_grad[1]:
                new_HV = product((hidden_NH[part] * -scale_N1[part]).t(), held_NV.t())
                grad_weight_HV = new_HV if grad_weight_HV is None else grad_weight_HV.add_(new_HV)
            held_NV = None
        return (
            grad_hidden,
            None if grad_weight_HV is None else grad_weight_HV.t(),
            None,
            None,
            None,
            None,
            None,
        )


def _blocks(start: int, end: int, width: int) -> list[slice]:
    """Rows [start, end) in blocks of `BLOCK_NUMBERS` numbers."""
    size = max(1, BLOCK_NUMBERS // width)
    return [slice(at, min(at + size, end)) for at in range(start, end, size)]


def _logits(hidden_NH: Tensor, weight_VH: Tensor, temperature_N: Tensor, forbidden: Sequence[int]) -> Tensor:
    """h W^T / t, -inf at forbidden ids."""
    logits = product(hidden_NH / temperature_N[:, None], weight_VH)
    fill_forbidden(logits, tuple(forbidden))
    return logits


def fill_forbidden(logits: Tensor, ids: tuple[int, ...]) -> None:
    """Set `ids` of the last dimension to -inf, in place: runs of consecutive ids as slices, which is much
    faster than one by one."""
    runs, rest = _runs(ids)
    for begin, end in runs:
        logits[..., begin:end] = float("-inf")
    if rest:
        logits.index_fill_(-1, torch.tensor(rest, dtype=torch.long, device=logits.device), float("-inf"))


@lru_cache(maxsize=8)
def _runs(ids: tuple[int, ...], least: int = 32) -> tuple[list[tuple[int, int]], list[int]]:
    """([begin, end) of each run of at least `least` consecutive ids, the other ids)."""
    runs: list[tuple[int, int]] = []
    rest: list[int] = []
    for _, members in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        run = [i for _, i in members]
        if len(run) >= least:
            runs.append((run[0], run[-1] + 1))
        else:
            rest += run
    return runs, rest
