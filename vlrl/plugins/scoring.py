"""The one scoring protocol: what the policy said, what is right, and the row -> a verdict.

    score(response: Response, gold, row, **options) -> Verdict

response: the text of the policy, and the coordinate spaces of its pictures. gold: what is right, in the form
that the function reads. row: the `Row`, or a benchmark's raw record. A scoring function raises GoldError
where the row is broken and Unread where the response holds no answer that it can read; it raises nothing
else because of the response. Whoever calls one turns Unread into the lowest score (`settled`).

Rewards that score an answer, the kinds of `verify`, and the scorers of evaluation are such functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vlrl.types import CoordinateSpace

MAX_SHOWN = 500  # characters of an answer that a verdict shows
_TAGGED = frozenset({"tag", "tags", "field", "box", "boxes", "section"})


class GoldError(ValueError):
    """The gold answer of a row is broken: of the wrong type, empty, or not in the form that the
    docstring names.

    A fault of the data, never of the response, so it is raised and not scored. It is a ValueError.
    """


@dataclass(frozen=True)
class Answer:
    """The part of a response that is read: its text, its [start, end) in the response, how it was found
    (route), and why it is no answer ("" if it is one)."""

    text: str
    start: int
    end: int
    route: str
    problem: str = ""

    @property
    def span(self) -> tuple[int, int]:
        """[start, end) in the response."""
        return self.start, self.end

    @property
    def tagged(self) -> bool:
        """Whether it stood in tags, a field or a LaTeX box, so that its text holds the answer alone."""
        return self.route in _TAGGED


class Unread(Exception):
    """The response holds no answer that can be read: it is neither right nor wrong, and scores the lowest
    value. `answer` is the part in which one was looked for."""

    def __init__(self, reason: str, answer: Answer | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


class NoScore(RuntimeError):
    """A response could not be scored, through no fault of its own: the judge failed, or its reply could not
    be read. Raised, or returned by `Reward.score_group` in place of a score; the rollout is dropped and
    counted."""


@dataclass(frozen=True)
class Response:
    """What the policy said: the whole text, thinking included, and one coordinate space per picture."""

    text: str
    spaces: Sequence[CoordinateSpace] = ()

    @property
    def whole(self) -> Answer:
        """All of it, thinking included, as the part that is read."""
        return Answer(self.text, 0, len(self.text), "response")


@dataclass(frozen=True)
class Verdict:
    """The score of a response, whether it is right, and which part of the text was read.

    `correct`: the answer is right. `unread`: no answer could be read, so it is neither right nor wrong.
    `extracted`: the answer as it was read. `span`: its [start, end) character offsets in the response.
    `route`: how it was found and which rule decided ("box>rational"). `details`: what reports draw.
    `seconds`: wall-clock time.
    """

    score: float
    correct: bool
    reason: str = ""
    extracted: Any = None
    span: tuple[int, int] | None = None
    route: str = ""
    unread: bool = False
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def finished(self, seconds: float) -> Verdict:
        """The same verdict with its time, and with texts that can be written to a file: half a surrogate pair
        (from "\\ud800") becomes "?"."""
        return replace(
            self, seconds=seconds, reason=_writable(self.reason), extracted=_writable(self.extracted)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


Scoring = Callable[..., Verdict]  # (response: Response, gold, row, **options)


def _writable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def verdict(
    answer: Answer, score: float, correct: bool, reason: str, rule: str, extracted: str | None = None
) -> Verdict:
    """The verdict on an answer that was read by `rule`; `extracted` is by default the answer's text."""
    shown = answer.text.strip()[:MAX_SHOWN] if extracted is None else extracted
    return Verdict(score, correct, reason, shown or None, answer.span, f"{answer.route}>{rule}")


def right(answer: Answer, reason: str, rule: str, score: float = 1.0) -> Verdict:
    """A correct verdict."""
    return verdict(answer, score, True, reason, rule)


def wrong(answer: Answer, reason: str, rule: str, score: float = 0.0) -> Verdict:
    """A wrong verdict; `score` may be partial credit."""
    return verdict(answer, score, False, reason, rule)


def unread(nothing: Unread, lowest: float = 0.0) -> Verdict:
    """The verdict on a response that could not be read."""
    reason, answer = str(nothing), nothing.answer
    if answer is None:
        return Verdict(lowest, False, reason, unread=True)
    return replace(verdict(answer, lowest, False, reason, "none"), unread=True)


def settled(score: Scoring, response: Response, gold: Any, row: Any, lowest: float = 0.0) -> Verdict:
    """The verdict of a scoring function; one with the score `lowest` where the response could not be read."""
    try:
        return score(response, gold, row)
    except Unread as nothing:
        return unread(nothing, lowest)
