"""What a verifier says about a response."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """`correct`, a `score` in [0, 1] (1 for a fully right answer) and why.

    `extracted` is the answer that was judged, `span` its [start, end) character offsets in the response, `route` the extraction and the rule that
    decided ("box>rational"), `seconds` the wall-clock time spent.
    """

    correct: bool
    score: float
    reason: str
    extracted: str | None = None
    span: tuple[int, int] | None = None
    route: str = ""
    seconds: float = 0.0

    def timed(self, seconds: float) -> Verdict:
        """The same verdict with its time filled in."""
        return replace(self, seconds=seconds)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def right(reason: str, score: float = 1.0, **details: Any) -> Verdict:
    """A correct verdict."""
    return Verdict(True, score, reason, **details)


def wrong(reason: str, score: float = 0.0, **details: Any) -> Verdict:
    """A wrong verdict; `score` may hold partial credit."""
    return Verdict(False, score, reason, **details)
