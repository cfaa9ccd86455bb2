"""The state of a plug-in: what it learns while it runs, saved in checkpoints and restored from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRANSIENT = {"transient": True}  # metadata of a field that is not saved


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
        return dataclasses.field(default_factory=factory, metadata=TRANSIENT, repr=False)
    return dataclasses.field(default=default, metadata=TRANSIENT, repr=False)


@dataclass
class StepCounts(State):
    """Named sums of the current step, and those of the last one for the log. Neither is saved.

    A stage counts with `add` and logs with `totals` and `share`, in the form of `Stage.metrics`;
    `Stage.end_step` calls `roll`.
    """

    counts: dict[str, float] = dataclasses.field(default_factory=dict, metadata=TRANSIENT, repr=False)
    logged: dict[str, float] = dataclasses.field(default_factory=dict, metadata=TRANSIENT, repr=False)

    def add(self, **values: float) -> None:
        """Add to the sums of the current step."""
        for name, value in values.items():
            self.counts[name] = self.counts.get(name, 0.0) + value

    def roll(self) -> None:
        """End the step: its sums are those for the log."""
        self.logged, self.counts = self.counts, {}

    def totals(self, prefix: str, *names: str) -> dict[str, tuple[float, float]]:
        """The sums of the last step as `prefix/name`: these, or all that were counted."""
        return {f"{prefix}/{name}": (self.logged.get(name, 0.0), 0.0) for name in names or self.logged}

    def share(self, part: str, whole: str) -> tuple[float, float]:
        """One sum of the last step over another."""
        return self.logged.get(part, 0.0), self.logged.get(whole, 0.0)
