"""What can subscribe to a run: the console and the log, the activity of the slots, a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlrl.trainer.step.step import Step
from vlrl.types import FilterDecision, Group, LossInputs, Prompt, UnreducedLoss

if TYPE_CHECKING:
    from torch import Tensor


class RunObserver:
    """Told what a run does, stage by stage; draws no random numbers and changes nothing.

    Methods do nothing here. `reads_loss` says whether `loss_computed` is wanted, which costs a gradient.
    """

    reads_loss = False

    def warned(self, message: str) -> None:
        """A warning was given."""

    def event_happened(self, kind: str, values: Mapping[str, object]) -> None:
        """Something for the log of events."""

    def progressed(self, what: str, done: int, total: int) -> None:
        """A long part of a step has come so far."""

    def sampled(
        self, drawn: Sequence[str], prompts: Sequence[Prompt], counts: Sequence[int], groups: Sequence[Group]
    ) -> None:
        """The ids of the drawn rows, the prompts of those that can be used, the budget, the scored groups."""

    def shaped(self, slot: str, group: Group, before: Sequence[float]) -> None:
        """One reward shaping wrote a group's rewards; `before` are those that it read."""

    def filtered(self, slot: str, decision: FilterDecision) -> None:
        """A group filter decided about a group."""

    def replayed(self, before: Sequence[Group], after: Sequence[Group]) -> None:
        """The replay buffer got `before` and returned `after`."""

    def assigned(self, groups: Sequence[Group]) -> None:
        """Advantages and token credit were written into this rank's groups."""

    def loss_computed(
        self,
        x: LossInputs,
        main: UnreducedLoss,
        weights: Mapping[str, Tensor],
        terms: Mapping[str, tuple[float, UnreducedLoss]],
        aggregation: Tensor | None,
        total: Tensor,
    ) -> None:
        """The policy loss, the token weights, {slot: (coef, loss term)}, the weights of the aggregation, and
        the whole loss of one micro-batch."""

    def synced(self) -> None:
        """The engine has the weights of an update."""

    def ended(self, step: Step) -> None:
        """The step is over."""


class Observers(RunObserver):
    """All observers of a run, as one."""

    def __init__(self) -> None:
        self.members: list[RunObserver] = []

    @property
    def reads_loss(self) -> bool:  # type: ignore[override]  # a constant elsewhere
        return any(member.reads_loss for member in self.members)

    def loss_computed(self, *told: Any) -> None:
        for member in self.members:
            if member.reads_loss:
                member.loss_computed(*told)


def _tell_all(name: str) -> Callable[..., None]:
    def tell(self: Observers, *told: Any, **named: Any) -> None:
        for member in self.members:
            getattr(member, name)(*told, **named)

    return tell


for _name in vars(RunObserver).keys() - vars(Observers).keys():
    if not _name.startswith("_"):
        assert callable(getattr(RunObserver, _name)), f"Observers must define {_name} itself"
        setattr(Observers, _name, _tell_all(_name))
