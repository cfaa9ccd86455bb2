"""What every plug point shares."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from vlrl.run import Run
    from vlrl.types import Group


class Stage(ABC):  # noqa: B024
    """What every plug point shares."""

    name: ClassVar[str] = ""
    home: ClassVar[str] = ""
    needs: Sequence[str] = ()  # a class attribute, or a property where it depends on the config

    def check(self, run: Run) -> None:
        """Raise ConfigError, with the reason and what to use instead, if this plug-in cannot work in `run`."""

    def setup(self, run: Run) -> None:
        """Called once, when everything is built."""

    def observe(self, groups: Sequence[Group]) -> None:
        """Learn from what a finished step sampled, on all ranks (groups of other ranks come without media): each rank learns the same.

        Asked of all that decides what is sampled: sampler, scaffold, budget, decode and strategy. Only the strategy, which made them, sees
        demonstrations and replayed rollouts; the others see what the policy answered.
        """

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as plain values (JSON) or tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Numbers for the log, read once per step on every rank: the mean over ranks of a number; of a (sum, count) all sums over all counts.

        A count of 0 marks what adds up.
        """
        return {}
