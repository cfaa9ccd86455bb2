"""What every plug-in has: a name, needs, capabilities, a state, and the moments at which it acts."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar

from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.finding import PaperFinding, RunNumbers
from vlrl.plugins.state import State, StepCounts


class BeforeSetupError(RuntimeError):
    """A plug-in needs the run, and `setup(run)` was not called yet."""


class Stage(ABC):  # noqa: B024
    """What every plug-in has. A class overrides `needs`, `provides`, `requires` by an attribute, or by a
    property where they depend on the config."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    home: ClassVar[str] = "vlrl.methods"  # the packages of its plug-ins, with commas
    # what has to happen before it acts, where a few steps may not show it: "answers near the length limit"
    waits_for: ClassVar[str] = ""
    # the visit of a row from which on it acts: 2 for what reads the scores of earlier visits
    visits: ClassVar[int] = 1
    state_class: ClassVar[type[State] | None] = None  # its `State`, where it has one

    @property
    def needs(self) -> Sequence[str]:
        """Names of the extra tensors that it reads."""
        return ()

    @property
    def provides(self) -> Sequence[Capability]:
        """Capabilities and annotations that other plug-ins of the run can rely on."""
        return ()

    @property
    def requires(self) -> Sequence[Capability]:
        """Capabilities and annotations that another plug-in of the run must provide."""
        return ()

    @property
    def reward_slots(self) -> list[tuple[str, str]]:
        """(field, slot) of every reward slot that a field of type RewardSlot names; "" refers to nothing."""
        found: list[tuple[str, str]] = []
        declared: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        for field in declared:
            value = getattr(self, field.name) if "RewardSlot" in str(field.type) else ()
            slots = (value,) if isinstance(value, str) else value or ()
            found += [(field.name, slot) for slot in slots if slot]
        return found

    def init_state(self) -> State | None:
        """The state before the first step: a `state_class` as it is, which an override fills; None for a
        plug-in without state."""
        return None if self.state_class is None else self.state_class()

    @cached_property
    def state(self) -> Any:
        """The plug-in's `State`, made on first use."""
        return self.init_state()

    @cached_property
    def _attached(self) -> list[StageContext]:
        return []

    @property
    def run(self) -> StageContext:
        """The run that `setup` was called with. Raises BeforeSetupError before."""
        if not self._attached:
            raise BeforeSetupError(f"{self.kind} {self.name!r} was called before setup(run)")
        return self._attached[0]

    @property
    def is_set_up(self) -> bool:
        """Whether `setup` was called."""
        return bool(self._attached)

    def check(self, phase: PhaseContext) -> None:
        """Raise ConfigError, with the reason and what to use instead, if this plug-in cannot work in
        `phase`."""

    def setup(self, run: StageContext) -> None:
        """Called when the phase begins and the model is loaded. An override calls `super().setup(run)`."""
        self._attached[:] = [run]

    def end_step(self, run: StepContext) -> None:
        """Called after each step on all ranks, in the order of the slots; collectives are allowed. Groups of
        other ranks come without media. The sums of a `StepCounts` become those for the log: an override calls
        `super().end_step(run)`."""
        if isinstance(self.state, StepCounts):
            self.state.roll()

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Numbers for the log, read once per step after `end_step`; changes nothing.

        The log has the mean over ranks of a number; of a (sum, count) all sums over all counts. A count of 0
        marks what adds up.
        """
        return {}

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        """What its paper found, said of this run (`vlrl/plugins/finding.py`); asked once, after the last step
        of the run. None: the plug-in is no probe."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values (JSON) or tensors, for a checkpoint."""
        return self.state.state_dict() if self.state is not None else {}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        if self.state is not None:
            self.state.load_state_dict(values)
