"""Which weights an engine with a model of its own lacks: those that can have changed since it got them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from vlrl.services.lazy import Tensor, nn


class SentWeights:
    """What the engine has of a model. `due` are the names of the parameters to send next; None means all.

    A parameter can have changed if it is trained (`requires_grad`), if its layer has an adapter that is
    merged into it, or if it was written or moved since. Another model is sent whole, and so is the first one.
    """

    def __init__(self) -> None:
        self._model: Any = lambda: None
        self._stamps: dict[str, tuple[int, int]] = {}

    def due(self, model: nn.Module) -> set[str] | None:
        """The names of the parameters to send, with those that vLLM holds in the same tensors."""
        if self._model() is not model:
            return None
        adapted = adapted_layers(model)
        names = {
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad or name in adapted or self._stamps.get(name) != stamp(parameter)
        }
        due = with_fused(model, names)
        return None if len(due) == len(list(model.named_parameters())) else due

    def sent(self, model: nn.Module) -> None:
        """The engine has this model as it is now."""
        self._model = ref(model)
        self._stamps = {name: stamp(parameter) for name, parameter in model.named_parameters()}


def stamp(parameter: Tensor) -> tuple[int, int]:
    """Changes with every write to a parameter, and where it gets another tensor (`parameter.data = ...`)."""
    return parameter._version, getattr(parameter, "_local_tensor", parameter).data_ptr()


def with_fused(model: nn.Module, names: Iterable[str]) -> set[str]:
    """These parameters, and all that vLLM may hold in one layer with one of them: those of the same module,
    and those of linear layers (or of other modules of one class) beside it. q, k and v are one matrix there,
    gate and up too, and a layer is loaded whole or not at all."""
    modules = dict(model.named_modules())

    def places(name: str) -> tuple[str, tuple[str, type]]:
        """The module that owns a parameter, and (where it stands, its kind)."""
        owner = name.rpartition(".")[0]
        module = modules[owner]
        plain = owner.replace(".base_layer", "")  # PEFT's layers are inside one another
        return plain, (plain.rpartition(".")[0], nn.Linear if isinstance(module, nn.Linear) else type(module))

    found = [places(name) for name in names]
    owners, beside = {owner for owner, _ in found}, {place for _, place in found}
    together = set()
    for name, _ in model.named_parameters():
        owner, place = places(name)
        if owner in owners or place in beside:
            together.add(name)
    return together


def adapted_layers(model: Any) -> dict[str, Any]:
    """PEFT's layers, by the name of the parameter that each adapts."""
    return {
        adapted_name(name, module): module
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight")
    }


def adapted_name(name: str, module: Any) -> str:
    """The name of the parameter that PEFT's layer `name` adapts. Layers of several parameters of one module
    are inside one another."""
    own = getattr(module, "parameter_name", "weight")
    while hasattr(module, "base_layer"):
        name, module = f"{name}.base_layer", module.base_layer
    return f"{name}.{own}"
