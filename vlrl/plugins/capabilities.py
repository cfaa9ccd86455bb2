"""How plug-ins find each other: declared capabilities, and typed annotations on rollouts and groups. No torch
is imported here.

A plug-in names what it `provides` and what it `requires`; the run refuses a config in which a required
capability has no provider. An annotation is a capability that carries a value: the provider writes it on
rollouts or groups, those who require it read it.

    STEP_SCORES = Annotation("process.step_scores", list, hint="rewards: {steps: {name: stated_steps}}")

    class StepReward(Reward):
        provides = (STEP_SCORES,)
        def __call__(self, rollout):
            STEP_SCORES.set(rollout, [(3, 1.0), (9, 0.0)])

    class StepAdvantage(AdvantageEstimator):
        requires = (STEP_SCORES,)
        def __call__(self, groups):
            ... STEP_SCORES[rollout] ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated as Noted
from typing import Any, Generic, Protocol, TypeVar

RewardSlot = Noted[
    str, "reward slot"
]  # a field of this type, or a tuple of it, names slots under `rewards`; checked before a run

T = TypeVar("T")
D = TypeVar("D")


class Annotated(Protocol):
    """What can carry annotations: a Rollout or a Group."""

    info: dict[str, Any]


@dataclass(frozen=True)
class Capability:
    """Something that one plug-in does and another relies on. `hint` is the config text that provides it, for
    error messages."""

    name: str
    hint: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Annotation(Capability, Generic[T]):
    """A typed value that one plug-in writes on rollouts or groups and others read.

    Values are plain (numbers, text, lists, dicts), because rollouts are sent to other ranks and written to
    checkpoints. `kind` is the type of the value; `set` raises TypeError for another one. Equality and hashing
    are by `name` and `hint`.
    """

    kind: type | tuple[type, ...] = field(default=object, compare=False)
    doc: str = field(default="", kw_only=True, compare=False)

    def __getitem__(self, item: Annotated) -> T:
        """The value. Raises KeyError, naming the provider, where nothing was written."""
        try:
            return item.info[self.name]
        except KeyError:
            raise KeyError(
                f"no plug-in has written the annotation {self.name!r}; it comes from "
                f"{self.hint or 'its provider'}"
            ) from None

    def get(self, item: Annotated, default: D = None) -> T | D:  # type: ignore[assignment]  # None is the usual default
        """The value, or `default` where nothing was written."""
        return item.info.get(self.name, default)

    def set(self, item: Annotated, value: T) -> None:
        """Write the value. Raises TypeError if it is not of the declared type."""
        if not isinstance(value, self.kind):
            raise TypeError(
                f"annotation {self.name!r} holds {self.kind}, got {type(value).__name__}: {value!r:.80}"
            )
        item.info[self.name] = value

    def discard(self, item: Annotated) -> None:
        """Remove the value, if there is one."""
        item.info.pop(self.name, None)

    def on(self, item: Annotated) -> bool:
        """Whether `item` has the value."""
        return self.name in item.info


NO_POLICY_GRADIENT = Capability(
    "no_policy_gradient", hint="policy_loss: {name: zero_loss}"
)  # the policy loss is 0, whatever the advantages


def carry_annotations(target: Annotated, values: dict[str, Any]) -> None:
    """Write the annotations that a copy of a rollout or group got in another process."""
    target.info.update(values)
