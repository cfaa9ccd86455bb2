"""Some parts of the model are trained, others are frozen, each at its own pace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.methods.tune.full import decay_groups
from vlrl.registry import ConfigError, register
from vlrl.stages import Tune

Part = Literal["vision", "projector", "language"]


@register("parts")
@dataclass(frozen=True, kw_only=True)
class Parts(Tune):
    """theta_k <- theta_k - lr_k * update for the parts k that are not frozen.

    Paper: vlrl original (freezing the vision tower is common practice: arXiv:2503.07536, arXiv:2504.07615). `freeze` names parts; `lr` gives a part
    a learning rate of its own; `frozen` and `lr_of` do the same by regular expressions on parameter names (the first match counts, and
    names beat parts). Edge: parts that a model does not have are ignored; weights shared by two modules belong to the first.
    """

    freeze: tuple[Part, ...] = ()
    lr: Mapping[Part, float] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    lr_of: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern in (*self.frozen, *self.lr_of):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"tune: {pattern!r} is not a regular expression: {error}") from None

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        by_lr: dict[float | None, list[tuple[str, Any]]] = {}
        for name, parameter in policy.model.named_parameters():
            part = policy.part_of(name)
            parameter.requires_grad_(part not in self.freeze and not any(re.search(pattern, name) for pattern in self.frozen))
            own = next((lr for pattern, lr in self.lr_of.items() if re.search(pattern, name)), self.lr.get(part))
            by_lr.setdefault(own, []).append((name, parameter))
        return [group for lr, named in by_lr.items() for group in decay_groups(named, **({} if lr is None else {"lr": lr}))]
