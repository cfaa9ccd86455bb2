"""Scoring interfaces: a `Scorer` scores one response, an `Aggregate` combines the scored responses of a suite
into its figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.plugins.stages import Stage

Record = Mapping[str, Any]  # one raw row of a benchmark, with the hub's own field names
CORRECT_AT = 0.5  # a response counts as correct from this score on (pass@k, comparisons of profiles and runs)


@dataclass(frozen=True)
class ScoredResponse:
    """The score of one response and how it was obtained.

    `score` is in [0, 1]. `extracted` is the answer that was read from the response (None: none was found),
    `rule` names the rule that read it. `details` holds what the report page draws and what aggregates need
    (boxes, scores of parts).
    """

    score: float
    extracted: Any = None
    rule: str = ""
    details: Record = field(default_factory=dict)

    @property
    def parsed(self) -> bool:
        """Whether an answer was found in the response."""
        return self.extracted is not None

    @property
    def correct(self) -> bool:
        """Whether the score is at least `CORRECT_AT`."""
        return self.score >= CORRECT_AT


class Scorer(Stage):
    """Scores one response, deterministically and without network access.

    A scorer never raises because of a response; it raises ValueError for a broken gold answer.
    """

    kind: ClassVar[str] = "scorer"
    home: ClassVar[str] = "vlrl.eval.scorers"
    costly: ClassVar[bool] = (
        False  # runs programs: the score floors are then computed for the empty response only
    )

    @abstractmethod
    def __call__(self, record: Record, response: str) -> ScoredResponse: ...

    def gold(self, record: Record) -> Sequence[str]:
        """Responses that state the gold answer, one per format that the suite allows; the gold self-test
        expects each of them to score 1."""
        return [str(record["answer"])] if "answer" in record else []


class Aggregate(Stage):
    """Computes the figures of a suite: {"overall": ..., "<group>": ...}, all in [0, 1] unless its docstring
    says otherwise."""

    kind: ClassVar[str] = "aggregate"
    home: ClassVar[str] = "vlrl.eval.aggregates"

    @abstractmethod
    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]: ...

    def paths(self, records: Sequence[Record]) -> list[tuple[str, ...]] | None:
        """The groups of each record, outermost first, where the overall figure is a mean of means; None where
        it is not."""
        return None
