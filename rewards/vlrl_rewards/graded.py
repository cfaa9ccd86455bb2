"""Base class of the rewards that score an answer by one function, `grade(response, gold, row)`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict, settled, unread, verdict
from vlrl.plugins.stages import Reward
from vlrl.types import CoordinateSpace, Rollout, Row
from vlrl_rewards.literals import MAX_CHARS, fold
from vlrl_rewards.parsing import committed, visible
from vlrl_rewards.text.denials import refuses, taken_back

VERDICT: Annotation[dict[str, Any]] = Annotation(
    "verdict", dict, doc="reason, extracted answer, its span and route: the verdict on a rollout"
)
_PLACES = {  # the routes of an answer, by `answer_in`
    "marked": ("tag", "tags", "box", "boxes"),
    "tags": ("tag", "tags"),
    "box": ("box", "boxes"),
}
_LETTER = re.compile(r"[^\W\d_]")


def members(gold: Any, field_name: str = "answer") -> list[Any]:
    """The items of a gold list; a text is split at commas. Raises GoldError if `gold` is neither a list nor
    a text."""
    if isinstance(gold, str):
        return [part for part in gold.split(",") if part.strip()]
    if not isinstance(gold, (list, tuple, set, frozenset)):
        raise GoldError(f"{field_name}: {gold!r} is not a list; give [..., ...]")
    return list(gold)


def folded_answer(response: str, phrases: bool = False) -> Answer:
    """The answer a response commits to, folded by `fold`.

    In this order: the last answer in tags or a box outside the thinking, or a phrase behind it ("Final
    answer: ..."), which replaces it; with `phrases`, the text after "the answer is"; the whole visible text.
    """
    seen = visible(response)
    found = committed(response, None if phrases else _no_phrase)
    if found is not None and not phrases:
        later = committed(response, partial(_alike, found.text))
        found = later if later is not None and later.route == "phrase" and later.start >= found.end else found
    if found is None:
        start = len(seen) - len(seen.lstrip())
        return Answer(fold(seen).strip(), start, max(start, len(seen.rstrip())), "text")
    rest = seen[found.end :].lstrip().removeprefix("</answer>")
    problem = found.problem or ("the answer is taken back" if taken_back(rest) else "")
    return replace(found, text=fold(found.text).strip(), problem=problem)


def _alike(answer: str, said: str) -> bool:
    """Whether a phrase behind an answer may be another answer, and not a remark: with digits where the answer
    has some, else about as short."""
    if any(char.isdigit() for char in answer):
        return any(char.isdigit() for char in said)
    return len(said.split()) <= len(answer.split()) + 2


def _no_phrase(_text: str) -> bool:
    return False


def unreadable(what: str, answer: Answer, limit: str = "") -> Unread:
    """`what` was not found in an answer; `limit` says which limit of the reader the answer exceeds, if it
    does."""
    if len(answer.text) > MAX_CHARS:
        limit = limit or f"the answer has more than {MAX_CHARS:,} characters and is not read"
    return Unread(f"no {what} in the answer" + (f"; {limit}" if limit else ""), answer)


@dataclass(frozen=True, kw_only=True)
class Graded(Reward):
    """Base class of a reward that scores an answer against the gold answer.

    A subclass defines `grade`, which reads the gold answer first, then the response. An answer that it cannot
    read scores `lowest()`. `answer_in` "tags" reads an answer in answer tags alone, "box" one in a LaTeX box
    alone, as most releases do, "marked" either; "anywhere" also one behind a phrase, or the whole text. A
    last tag without its end counts, where most releases find nothing.
    """

    answer_in: Literal["anywhere", "marked", "tags", "box"] = "anywhere"
    phrases: ClassVar[bool] = False  # whether "the answer is ..." marks an answer
    refusals: ClassVar[bool] = (
        True  # whether "I cannot answer" counts as no answer (False where the answer is prose or a document)
    )
    joinable: ClassVar[bool] = True  # whether several LaTeX boxes side by side form one answer

    @abstractmethod
    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        """The scoring function (`vlrl.plugins.scoring`). Raises GoldError and Unread, nothing because of the
        response."""

    def lowest(self) -> float:
        """The score of an empty or unreadable answer, the lowest of most rewards."""
        return 0.0

    def committed(self, response: Response) -> Answer:
        """The answer that a response commits to. Raises Unread where it is empty, denied or a refusal."""
        answer = folded_answer(response.text, self.phrases)
        if answer.problem or not answer.text:
            raise Unread(answer.problem or "the answer is empty", answer)
        if answer.route == "boxes" and not self.joinable:
            raise Unread("several answers in boxes", answer)
        if self.refusals and _LETTER.search(answer.text) and refuses(answer.text):
            raise Unread("the response declines to answer", answer)
        return answer

    def scored(
        self,
        answer: Answer,
        score: float,
        correct: bool | None,
        reason: str,
        extracted: str | None = None,
    ) -> Verdict:
        """The verdict on an answer. `correct` None: from the score `correct_at` on. `extracted`: what was
        read from it, by default its text."""
        right = score >= self.correct_at - 1e-9 if correct is None else correct
        return verdict(answer, score, right, reason, self.name, extracted)

    def wrong(self, answer: Answer, reason: str, extracted: str | None = None) -> Verdict:
        """The lowest score, for an answer that was read."""
        return self.scored(answer, self.lowest(), False, reason, extracted)

    def verify(
        self,
        gold: Any,
        response: str,
        choices: Sequence[str] = (),
        spaces: Sequence[CoordinateSpace] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> Verdict:
        """The verdict on a response without a run. Raises GoldError for a broken gold answer."""
        row = Row(self.name, "", gold, choices=tuple(choices), meta=meta or {})
        return settled(self.grade, Response(response, spaces), gold, row, self.lowest())

    def judged(self, rollout: Rollout) -> Verdict:
        """The verdict on a rollout, recorded in the annotation VERDICT."""
        response = Response(rollout.text, rollout.spaces)
        found = settled(self.grade, response, rollout.answer, rollout.row, self.lowest())
        if self.answer_in != "anywhere" and found.route.partition(">")[0] not in _PLACES[self.answer_in]:
            where = "tags or a box" if self.answer_in == "marked" else self.answer_in
            found = unread(Unread(f"no answer in {where}"), self.lowest())
        kept = {
            "reason": found.reason,
            "extracted": found.extracted,
            "span": found.span,
            "route": found.route,
        }
        VERDICT.set(rollout, kept)
        return found

    def __call__(self, rollout: Rollout) -> float:
        return float(self.judged(rollout).score)
