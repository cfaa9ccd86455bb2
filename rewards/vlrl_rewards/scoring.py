"""The one scoring protocol: what the policy said, what is right, and the row -> a verdict.

    score(response: Response, gold, row, **options) -> Verdict

response: the text of the policy, and the coordinate spaces of its pictures. gold: what is right, in the form that
the function reads. row: the `Row` (a benchmark's raw record in `vlrl.eval`). A scoring function raises GoldError
where the row is broken and Unread where the response holds no answer that it can read; it raises nothing else
because of the response. Whoever calls one turns Unread into the lowest score (`settled`).

`@verifier("palindrome")` on such a function, or on a class of `vlrl_rewards.graded`, makes it a kind of
`verify`; the reward `verify`, the eval scorer `verifier` and `vlrl verify` then score by it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from vlrl.types import CoordinateSpace
from vlrl_rewards.parsing import Answer, committed, uncommitted, visible

MAX_SHOWN = 500  # characters of an answer that a verdict shows


class GoldError(ValueError):
    """The gold answer of a row is broken: of the wrong type, empty, or not in the form that the docstring names.

    A fault of the data, never of the response, so it is raised and not scored. It is a ValueError.
    """


class Unread(Exception):
    """The response holds no answer that can be read: it is neither right nor wrong, and scores the lowest
    value. `answer` is the part in which one was looked for."""

    def __init__(self, reason: str, answer: Answer | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True)
class Response:
    """What the policy said: the whole text, thinking included, and one coordinate space per picture."""

    text: str
    spaces: Sequence[CoordinateSpace] = ()

    @cached_property
    def visible(self) -> str:
        """The text with its thinking replaced by spaces; offsets do not change."""
        return visible(self.text)

    @cached_property
    def answer(self) -> Answer | None:
        """The last committed answer, or None."""
        return committed(self.text)

    @property
    def whole(self) -> Answer:
        """All of it, thinking included, as the part that is read."""
        return Answer(self.text, 0, len(self.text), "response")

    def committed_answer(self) -> Answer:
        """The last committed answer, trimmed. Raises Unread if there is none, or several."""
        if self.answer is None or self.answer.problem:
            raise Unread(self.answer.problem if self.answer else "no committed answer", self.answer)
        return replace(self.answer, text=self.answer.text.strip())

    def final_answer(self) -> Answer:
        """The committed answer, else the whole visible text. Raises Unread if it is empty, or several."""
        if self.answer is not None:
            answer = self.committed_answer()
        else:
            said = uncommitted(self.visible)
            start = self.visible.find(said)
            answer = Answer(said, start, start + len(said), "text")
        if not answer.text:
            raise Unread("no committed answer", answer)
        return answer


@dataclass(frozen=True)
class Verdict:
    """The score of a response, whether it is right, and which part of the text was read.

    `correct`: the answer is right. `unread`: no answer could be read, so it is neither right nor wrong.
    `extracted`: the answer as it was read. `span`: its [start, end) character offsets in the response. `route`:
    how it was found and which rule decided ("box>rational"). `details`: what reports draw. `seconds`: wall-clock
    time.
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
    """The verdict on an answer that was read; `rule` names what decided, `extracted` is by default its text."""
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


@dataclass(frozen=True)
class Kind:
    """A kind of answer: its scoring function, the names of its options, and the reward that defines it ("": a
    function does). The kind of a reward also takes the options `spaces` and `meta`."""

    score: Scoring
    options: tuple[str, ...]
    reward: str = ""

    def check(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise ValueError on an option that the kind does not have."""
        for option in options:
            if option not in self.options:
                raise ValueError(
                    f"kind {name!r} has no option {option!r}; it has: {', '.join(self.options) or 'none'}"
                )


KINDS: dict[str, Kind] = {}
T = TypeVar("T", bound=Callable[..., Any])


def verifier(*kinds: str) -> Callable[[T], T]:
    """Register a scoring function, or a reward with a `grade`, under one or more kinds of `verify`.

    The options of the kind are the keyword-only parameters of the function, or the fields of the reward. Where
    `correct_at` of a reward is given, a verdict is correct from that score on; else its `grade` decides.
    """

    def add(scorer: T) -> T:
        kind = _of_reward(scorer) if isinstance(scorer, type) else _of_function(scorer)
        for name in kinds:
            known, new = (_origin(one) for one in (KINDS.get(name, kind), kind))
            if known != new:
                raise ValueError(
                    f"kind {name!r} is registered twice: by {known.partition(':')[0]} and by "
                    f"{new.partition(':')[0]}"
                )
            KINDS[name] = kind
        return scorer

    return add


def _origin(kind: Kind) -> str:
    return f"{kind.score.__module__}:{kind.score.__qualname__}"


def _of_function(function: Scoring) -> Kind:
    parameters = inspect.signature(function).parameters.values()
    return Kind(function, tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY))


def _of_reward(cls: Any) -> Kind:
    from vlrl.plugins.registry import make
    from vlrl.plugins.stages import Reward

    def score(response: Response, gold: Any, row: Any, **options: Any) -> Verdict:
        reward = make(cls, options, cls.name) if options else cls()
        found = reward.grade(response, gold, row)
        correct = found.score >= options["correct_at"] - 1e-9 if "correct_at" in options else found.correct
        return replace(found, score=min(1.0, max(0.0, float(found.score))), correct=bool(correct))

    score.__module__, score.__qualname__ = cls.__module__, cls.__qualname__
    shared = {f.name for f in fields(Reward)} - {"correct_at"}
    names = tuple(f.name for f in fields(cls) if f.init and f.name not in shared)
    return Kind(score, (*names, "spaces", "meta"), cls.name)
