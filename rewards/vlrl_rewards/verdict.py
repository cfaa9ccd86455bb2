"""The verdict of a verifier on a response."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


class GoldError(ValueError):
    """The gold answer of a row is broken: of the wrong type, empty, or not in the form that the verifier's
    docstring names.

    A fault of the data, never of the response, so it is raised and not scored. It is a ValueError.
    """


@dataclass(frozen=True)
class Verdict:
    """Whether the answer is `correct`, its `score` in [0, 1] (1 for a fully correct answer), and the reason.

    `extracted`: the answer that was judged. `span`: its [start, end) character offsets in the response.
    `route`: how it was extracted and which rule decided ("box>rational"). `seconds`: wall-clock time.
    """

    correct: bool
    score: float
    reason: str
    extracted: str | None = None
    span: tuple[int, int] | None = None
    route: str = ""
    seconds: float = 0.0

    def finished(self, seconds: float) -> Verdict:
        """The same verdict with its time, and with texts that can be written to a file: half a surrogate pair
        (from "\\ud800") becomes "?"."""
        return replace(
            self,
            seconds=seconds,
            reason=_writable(self.reason),
            extracted=None if self.extracted is None else _writable(self.extracted),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def right(reason: str, score: float = 1.0, **details: Any) -> Verdict:
    """A correct verdict."""
    return Verdict(True, score, reason, **details)


def wrong(reason: str, score: float = 0.0, **details: Any) -> Verdict:
    """A wrong verdict; `score` may be partial credit."""
    return Verdict(False, score, reason, **details)
