"""A simulated device: its tensors are computed on the CPU, but operations that mix them with CPU tensors
fail, as on a GPU.

Needs a separate process, because the device stays registered. Not covered: storage (no saving), kernels,
memory, autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "fake"
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}  # operations that may cross devices
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
}  # the index may be on the host


class DeviceTensor(Tensor):
    """A tensor on the simulated device; `inner` holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(
            f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
            "host memory first."
        )

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation on the values, after checking the devices of its tensors."""
    tensors = [*tensors_in(args), *tensors_in(kwargs)]
    on_device = any(isinstance(x, DeviceTensor) for x in tensors)
    if on_device and func not in MOVES:
        bound = [*tensors_in(args[:1]), *tensors_in(args[2:])] if func in INDEXING else tensors
        strangers = [tuple(x.shape) for x in bound if x.dim() and not isinstance(x, DeviceTensor)]
        if strangers:
            raise RuntimeError(f"{func}: expected all tensors on {NAME}:0, found on cpu: shapes {strangers}")
    target = kwargs.get("device")
    if target is not None:
        on_device, kwargs = torch.device(target).type == NAME, {**kwargs, "device": torch.device("cpu")}
    if func is aten._fused_sdp_choice.default:
        return 0  # attention by plain products
    if "pin_memory" in kwargs:
        kwargs = {**kwargs, "pin_memory": False}
    if func is aten.histc.default and not args[0].is_floating_point():  # which a GPU has, and a CPU has not
        return DeviceTensor(aten.histc(bare(args[0]).double(), *args[1:]).to(args[0].dtype))
    out = func(*changed(bare, args), **changed(bare, kwargs))
    if func._schema.name.endswith("_"):
        return args[0]
    known = {id(x.inner): x for x in tensors if isinstance(x, DeviceTensor)}
    return changed(lambda x: known[id(x)] if id(x) in known else DeviceTensor(x), out) if on_device else out


def bare(value: Tensor) -> Tensor:
    return value.inner if isinstance(value, DeviceTensor) else value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an operation's arguments: torch's own `tree_leaves` takes half of a trial's time."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def changed(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Arguments or results with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([changed(change, one) for one in value])
    if isinstance(value, dict):
        return {name: changed(change, one) for name, one in value.items()}
    return value


class FakeDevice(TorchDispatchMode):
    """Inside, `torch.device("fake:0")` works."""

    def __enter__(self) -> Any:
        torch._C._set_only_lift_cpu_tensors(
            True
        )  # torch.tensor(..., device=) makes a host tensor and moves it, which is dispatched
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(False)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def register() -> None:
    """Register the device with torch."""
    _setup_privateuseone_for_python_backend(NAME, _DummyBackendModule())
    torch.__future__.set_swap_module_params_on_conversion(
        True
    )  # so that weights become tensors of the device


def refuses(work: Callable[[], Any]) -> bool:
    try:
        work()
    except (RuntimeError, TypeError):
        return True
    return False
