"""Plug points of the learning signal: rewards, gates, advantages, credit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlrl.stages.base import Stage
from vlrl.types import Group, Rollout, Verdict


@dataclass(frozen=True, kw_only=True)
class Reward(Stage):
    """Scores a rollout. Raise on a broken gold answer or verifier, never on a bad response: that is a score.

    `weight` is its factor in the sum (0: only logged). `tasks` limits it to rows of these tasks; empty means all.
    """

    kind: ClassVar[str] = "reward"
    home: ClassVar[str] = "vlrl_rewards"
    reads_answer: ClassVar[bool] = True  # False: looks at form or length only, so a row without an answer is fine
    weight: float = 1.0
    tasks: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, rollout: Rollout) -> float | Awaitable[float]: ...

    def score(self, group: Group) -> list[float] | Awaitable[list[float]] | list[Awaitable[float]]:
        """All rollouts of a group; override where siblings matter."""
        return [self(rollout) for rollout in group]  # type: ignore[return-value]


class Shape(Stage):
    """New total rewards of a group (a chain: each reads what the one before it wrote to `rollout.reward`)."""

    kind: ClassVar[str] = "shape"
    home: ClassVar[str] = "vlrl.methods.shape"
    punishes_length: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, group: Group) -> list[float]: ...


class Gate(Stage):
    """Whether a scored group is trained on. Dropped groups are counted by reason and replaced."""

    kind: ClassVar[str] = "gate"
    home: ClassVar[str] = "vlrl.methods.gate"

    @abstractmethod
    def __call__(self, group: Group) -> Verdict: ...


class Replay(Stage):
    """Adds stored or expert rollouts to the fresh groups, and may remember these."""

    kind: ClassVar[str] = "replay"
    home: ClassVar[str] = "vlrl.methods.replay"

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> list[Group]: ...


class Advantage(Stage):
    """One number per rollout. Sees the groups of all ranks (those of others without media, and without signals of many numbers per token)."""

    kind: ClassVar[str] = "advantage"
    home: ClassVar[str] = "vlrl.methods.advantage"
    writes_tokens: ClassVar[bool] = False  # True: leaves one number per token in `rollout.info["token_advantages"]`, for credit `per_token`

    def prepare(self, groups: Sequence[Group]) -> None:
        """Take from this rank's own groups, before the others see them, what stays behind: into `rollout.info`."""

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> list[list[float]]: ...


class Credit(Stage):
    """A rollout's advantage spread over its tokens: one list per rollout, as long as its ids."""

    kind: ClassVar[str] = "credit"
    home: ClassVar[str] = "vlrl.methods.credit"

    @abstractmethod
    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]: ...
