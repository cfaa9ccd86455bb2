"""Plug points of the run: what is trained, and what happens after a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.stages.base import Stage
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.policy import Policy
    from vlrl.run import Run


class Tune(Stage):
    """What is trained: called with the policy before the optimizer is made; freezes, wraps, returns parameter groups."""

    kind: ClassVar[str] = "tune"
    home: ClassVar[str] = "vlrl.methods.tune"

    @abstractmethod
    def __call__(self, policy: Policy) -> list[dict[str, Any]]: ...


class Callback(Stage):
    """After a step: reference resets, EMA, evaluation, phase changes."""

    kind: ClassVar[str] = "callback"
    home: ClassVar[str] = "vlrl.methods.callback"

    @abstractmethod
    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]: ...


class Probe(Stage):
    """Numbers for the log and the report."""

    kind: ClassVar[str] = "probe"
    home: ClassVar[str] = "vlrl.methods.probe"

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> dict[str, float]: ...
