"""torch without its import: `from vlrl.services.lazy import torch` imports it when an attribute is read.

Plug-in modules take torch from here, so that `vlrl list`, `show`, `check` and the checks before training
import them all without it. The first use puts torch in the place of its proxies in all modules: what runs
afterwards is as fast as with `import torch`. A module that derives a class from one of torch's imports torch
itself, and is imported by the function that needs the class.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_PROXIES: dict[str, Any] = {}  # by the name that modules import them under

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
    from torch import nn as nn
else:

    class _Module(ModuleType):
        """Stands for a module until one of its attributes is read."""

        def __getattr__(self, name: str) -> Any:
            _replace_proxies()
            return getattr(importlib.import_module(self.__name__), name)

    class _IsTensor(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)

    class Tensor(metaclass=_IsTensor):
        """Stands for `torch.Tensor` in annotations and `isinstance`."""

    torch, nn = _Module("torch"), _Module("torch.nn")
    _PROXIES |= {"torch": torch, "nn": nn, "Tensor": Tensor}


def _replace_proxies() -> None:
    """Import torch, and put it and its names in the place of their proxies in all modules, once."""
    real = importlib.import_module("torch")
    if globals()["torch"] is real:
        return
    for module in list(sys.modules.values()):
        values = getattr(module, "__dict__", {})
        for name, proxy in _PROXIES.items():
            if values.get(name) is proxy:
                values[name] = real if name == "torch" else getattr(real, name)


def no_grad(function: Callable[P, T]) -> Callable[P, T]:
    """The decorator `@torch.no_grad()` for functions and generators, without torch before the first call."""
    decorated: list[Callable[P, T]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not decorated:
            decorated.append(torch.no_grad()(function))
        return decorated[0](*args, **kwargs)

    return call
