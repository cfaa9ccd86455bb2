"""Heavy libraries, imported on first use: `from vlrl.services.lazy import torch`.

Plug-in modules take these libraries from here, so that `vlrl list`, `show`, `check` and the checks before
training import all plug-ins in less than a second. The first attribute that is read imports the library and
puts it in the place of its proxies in all modules: what runs afterwards is as fast as with `import torch`. A
module that derives a class from one of torch's imports torch itself, and is imported by the function that
needs the class.
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
_PROXIES: dict[str, tuple[Any, str]] = {}  # name in modules -> proxy, what it stands for

if TYPE_CHECKING:
    import filelock as filelock
    import httpx as httpx
    import networkx as nx
    import torch as torch
    from scipy import special as special
    from torch import Tensor as Tensor
    from torch import nn as nn
else:

    class _Module(ModuleType):
        """Stands for a module until one of its attributes is read."""

        def __getattr__(self, name: str) -> Any:
            module = importlib.import_module(self.__name__)
            _replace_proxies(self.__name__.partition(".")[0])
            return getattr(module, name)

    class _IsTensor(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)

    class Tensor(metaclass=_IsTensor):
        """Stands for `torch.Tensor` in annotations and `isinstance`."""

    filelock, httpx, nx = map(_Module, ("filelock", "httpx", "networkx"))
    special = _Module("scipy.special")
    torch, nn = map(_Module, ("torch", "torch.nn"))
    _PROXIES |= {
        "filelock": (filelock, "filelock"),
        "httpx": (httpx, "httpx"),
        "nx": (nx, "networkx"),
        "special": (special, "scipy.special"),
        "torch": (torch, "torch"),
        "nn": (nn, "torch.nn"),
        "Tensor": (Tensor, "torch.Tensor"),
    }


def _replace_proxies(library: str) -> None:
    """Put an imported library and its names in the place of their proxies in all modules, once."""
    mine = {name: found for name, found in dict(_PROXIES).items() if found[1].partition(".")[0] == library}
    for name, (proxy, path) in mine.items():
        _PROXIES.pop(name, None)
        real = functools.reduce(getattr, path.split(".")[1:], sys.modules[library])
        for module in list(sys.modules.values()):
            values = getattr(module, "__dict__", {})
            if values.get(name) is proxy:
                values[name] = real


def no_grad(function: Callable[P, T]) -> Callable[P, T]:
    """The decorator `@torch.no_grad()` for functions and generators, without torch before the first call."""
    decorated: list[Callable[P, T]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not decorated:
            decorated.append(torch.no_grad()(function))
        return decorated[0](*args, **kwargs)

    return call
