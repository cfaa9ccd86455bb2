"""What a suite is scored with: a `Scorer` marks one response, an `Aggregate` turns the marks of a suite into its figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.stages import Stage

Fields = Mapping[str, Any]  # one row of a benchmark, with the hub's own field names


@dataclass(frozen=True)
class Mark:
    """The verdict on one response.

    `score` is in [0, 1]. `extracted` is what was read out of the response (None: nothing was), `rule` the rule that read it.
    `details` holds what the page draws and what aggregates need (boxes, sub-verdicts).
    """

    score: float
    extracted: Any = None
    rule: str = ""
    details: Fields = field(default_factory=dict)

    @property
    def parsed(self) -> bool:
        """Whether an answer was found at all."""
        return self.extracted is not None


class Scorer(Stage):
    """Marks one response, deterministically and without any network. Never raises on a response; raises ValueError on a broken gold answer."""

    kind: ClassVar[str] = "scorer"
    home: ClassVar[str] = "vlrl.eval.scorers"
    costly: ClassVar[bool] = False  # runs programs: floors are then computed for silence only

    @abstractmethod
    def __call__(self, row: Fields, response: str) -> Mark: ...

    def gold(self, row: Fields) -> Sequence[str]:
        """Responses that say the gold answer, in every format that the suite allows; the self-test wants each of them to score 1."""
        return [str(row["answer"])] if "answer" in row else []


class Aggregate(Stage):
    """The figures of a suite: {"overall": ..., "<group>": ...}, all in [0, 1] unless its docstring says otherwise."""

    kind: ClassVar[str] = "aggregate"
    home: ClassVar[str] = "vlrl.eval.aggregates"

    @abstractmethod
    def __call__(self, rows: Sequence[Fields], marks: Sequence[Mark]) -> dict[str, float]: ...

    def paths(self, rows: Sequence[Fields]) -> list[tuple[str, ...]] | None:
        """Where the overall figure is a mean of means: the groups of each row, outermost first. None: it is something else."""
        return None
