"""Matrix products and log-probs of the output layer in float32 on a CPU.

torch multiplies float32 matrices with MKL, which runs its AVX-512 code on Intel's processors only. oneDNN,
which torch holds too, goes by the processor's instructions: on an AMD EPYC with AVX-512 its products are
about twice as fast (docs/benchmarks.md), with float32 sums as before. It takes MKL's place in the linear
layers of the policy there; `torch.backends.mkldnn.flags(enabled=False)` gives torch's own products back.

Shape legend: N rows, I inputs, O outputs of a layer, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from vlrl.services.lazy import Tensor, nn, torch

LEAST_PRODUCTS = 1 << 18  # multiplications: below, the call itself takes longer
PACKED_LEAST_PRODUCTS = 1 << 19  # the same for weights in oneDNN's own order, against MKL's product


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


def applies(*tensors: Tensor) -> bool:
    """Whether oneDNN's product takes the place of torch's for these tensors."""
    return plain_float(*tensors) and bool(torch.backends.mkldnn.enabled) and onednn_is_faster()


def product(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x W^T + b, (N, O), without gradient; small products by torch."""
    if x_NI.numel() * weight_OI.shape[0] >= LEAST_PRODUCTS and applies(x_NI, weight_OI):
        return torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return nn.functional.linear(x_NI, weight_OI, bias_O)


PACKED: ContextVar[Mapping[nn.Module, Tensor]] = ContextVar("packed", default=MappingProxyType({}))


def is_linear(layer: nn.Module) -> bool:
    """Whether a layer is torch's linear layer or `CPULinear`, and no other class derived from them."""
    from vlrl.policy.autograd import CPULinear

    return type(layer) in (nn.Linear, CPULinear)


def pack(model: nn.Module) -> dict[nn.Module, Tensor]:
    """The trained weights of the model's linear layers, copied into the order in which oneDNN multiplies
    them; for `packed_weights`.

    A product of few rows takes half the time with such a copy: without it, oneDNN makes one in every call.
    Frozen weights (the base of an adapter) are left out. A trained one has a gradient of its size, which is
    not held while the policy samples, so that the copy does not raise the peak. Empty where oneDNN's product
    does not apply (other types, devices and processors, sharded weights).
    """
    from vlrl.policy.autograd import CPULinear

    layers = [
        m
        for m in model.modules()
        if type(m) is CPULinear and type(m.weight) is nn.Parameter and not hasattr(m.weight, "ds_id")
    ]
    return {
        m: torch.ops.mkldnn._reorder_linear_weight(m.weight.detach(), 64)
        for m in layers
        if m.weight.requires_grad and applies(m.weight)
    }


@contextmanager
def packed_weights(packed: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Inside, forwards without gradient multiply with these copies of weights, which must be those of the
    weights as they are."""
    token = PACKED.set(packed)
    try:
        yield
    finally:
        PACKED.reset(token)


def install(model: nn.Module) -> int:
    """Turn the model's linear layers into `CPULinear` where oneDNN is faster; returns how many."""
    from vlrl.policy.autograd import CPULinear

    layers = [module for module in model.modules() if type(module) is nn.Linear] if onednn_is_faster() else []
    for layer in layers:
        layer.__class__ = CPULinear
    return len(layers)


# --- the output layer ---------------------------------------------------------------------------------------


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
