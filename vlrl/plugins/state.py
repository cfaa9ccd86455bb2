"""The state of a plug-in: what it learns while it runs, saved in checkpoints and restored from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class State:
    """What a plug-in learns, or holds while it runs: a mutable dataclass, made by `Stage.init_state`.

    Every field is saved in checkpoints (plain values or tensors) except those declared with `transient()`. A
    field that is not plain is converted in `state_dict` and `load_state_dict`.
    """

    def state_dict(self) -> dict[str, Any]:
        """The saved fields by name; dicts and lists are copied one level deep."""
        return {
            f.name: _copied(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if not f.metadata.get("transient")
        }

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Undo `state_dict`. Raises KeyError for a name that is no field."""
        known = {f.name for f in dataclasses.fields(self)}
        for name, value in values.items():
            if name not in known:
                raise KeyError(f"{type(self).__name__} has no field {name!r}; it has {sorted(known)}")
            setattr(self, name, _copied(value))


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value


def transient(default: Any = None, *, factory: Any = None) -> Any:
    """A field of a `State` that is not saved: a handle, or a count of the current step."""
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata={"transient": True}, repr=False)
    return dataclasses.field(default=default, metadata={"transient": True}, repr=False)
