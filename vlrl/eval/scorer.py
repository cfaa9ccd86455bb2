"""Scoring interfaces: a `Scorer` scores one response, an `Aggregate` combines the scored responses of a suite
into its figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vlrl.plugins.scoring import Response, Verdict, settled
from vlrl.plugins.stages import Stage

Record = Mapping[str, Any]  # one raw row of a benchmark, with the hub's own field names
CORRECT_AT = 0.5  # a response counts as correct from this score on (pass@k, comparisons of profiles and runs)


class Scorer(Stage):
    """Scores one response by the scoring protocol (`vlrl.plugins.scoring`), deterministically and without
    network access. Its rows are a benchmark's raw records."""

    kind: ClassVar[str] = "scorer"
    home: ClassVar[str] = "vlrl.eval.scorers"
    costly: ClassVar[bool] = (
        False  # runs programs: the score floors are then computed for the empty response only
    )

    @abstractmethod
    def expected(self, record: Record) -> Any:
        """What is right for a record, as `grade` reads it. Raises ValueError for a broken record."""

    @abstractmethod
    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        """The scoring function. Raises ValueError for a broken record, nothing because of the response."""

    def __call__(self, record: Record, response: str | Response) -> Verdict:
        said = Response(response) if isinstance(response, str) else response
        return settled(self.grade, said, self.expected(record), record)

    def scored(self, score: float, read: Any, rule: str, details: Record | None = None) -> Verdict:
        """The verdict on a response from which `rule` read `read` (None: nothing). `details` holds what the
        report page draws and what aggregates need (boxes, scores of parts)."""
        right = score >= CORRECT_AT
        return Verdict(score, right, extracted=read, route=rule, unread=read is None, details=details or {})

    def demonstrations(self, record: Record) -> Sequence[str]:
        """Responses that state the gold answer, one per format that the suite allows; the gold self-test
        expects each of them to score 1."""
        return [str(record["answer"])] if "answer" in record else []


class Aggregate(Stage):
    """Computes the figures of a suite: {"overall": ..., "<group>": ...}, all in [0, 1] unless its docstring
    says otherwise."""

    kind: ClassVar[str] = "aggregate"
    home: ClassVar[str] = "vlrl.eval.aggregates"

    @abstractmethod
    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]: ...

    def paths(self, records: Sequence[Record]) -> list[tuple[str, ...]] | None:
        """The groups of each record, outermost first, where the overall figure is a mean of means; None where
        it is not."""
        return None
