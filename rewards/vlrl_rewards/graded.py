"""Base class of the rewards that grade the committed answer of a response, and `@judged`, which makes such a
reward a kind of `verify`."""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from vlrl.plugins.registry import make
from vlrl.plugins.stages import Reward
from vlrl.types import CoordinateSpace, Rollout
from vlrl_rewards.kinds import Case, verifier
from vlrl_rewards.literals import MAX_CHARS, fold
from vlrl_rewards.parsing import committed, visible
from vlrl_rewards.text.denials import refuses, taken_back
from vlrl_rewards.verdict import GoldError, Verdict

_LETTER = re.compile(r"[^\W\d_]")


class Grade(NamedTuple):
    """The result of grading an answer: score, whether it counts as correct, the reason, and the answer as it
    was read."""

    score: float
    correct: bool
    reason: str = ""
    extracted: str = ""


class Answer(NamedTuple):
    """The text that a response commits to.

    tagged: the text stood in answer tags or a LaTeX box, so it contains only the answer. problem: why it
    cannot be graded ("": it can). route: how the answer was found. span: its [start, end) character offsets
    in the response.
    """

    text: str
    tagged: bool
    problem: str = ""
    route: str = "text"
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scene:
    """Context of an answer: coordinate spaces of the images, choices, the row's `meta`, and the whole
    response including its thinking."""

    spaces: Sequence[CoordinateSpace] = ()
    choices: Sequence[str] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    response: str = ""


def members(gold: Any, field_name: str = "answer") -> list[Any]:
    """The items of a gold list; a text is split at commas. Raises ValueError if `gold` is neither a list nor
    a text."""
    if isinstance(gold, str):
        return [part for part in gold.split(",") if part.strip()]
    if not isinstance(gold, (list, tuple, set, frozenset)):
        raise ValueError(f"{field_name}: {gold!r} is not a list; give [..., ...]")
    return list(gold)


def final_answer(response: str, phrases: bool = False) -> Answer:
    """The answer a response commits to, folded by `fold`.

    In this order: the last answer in tags or a box outside the thinking, or a phrase behind it ("Final
    answer: ..."), which replaces it; with `phrases`, the text after "the answer is"; the whole visible text.
    """
    found = committed(response, None if phrases else _no_phrase)
    if found is not None and not phrases:
        later = committed(response, partial(_alike, found.text))
        found = later if later is not None and later.route == "phrase" and later.start >= found.end else found
    if found is None:
        return Answer(fold(visible(response)).strip(), False)
    rest = visible(response)[found.end :].lstrip().removeprefix("</answer>")
    problem = found.problem or ("the answer is taken back" if taken_back(rest) else "")
    return Answer(fold(found.text).strip(), found.route != "phrase", problem, found.route, found.span)


def _alike(answer: str, said: str) -> bool:
    """Whether a phrase behind an answer may be another answer, and not a remark: with digits where the answer
    has some, else about as short."""
    if any(char.isdigit() for char in answer):
        return any(char.isdigit() for char in said)
    return len(said.split()) <= len(answer.split()) + 2


def _no_phrase(_text: str) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Graded(Reward):
    """Base class of a reward that grades the committed answer of a response against the gold answer.

    A subclass defines `target` (reads and checks the gold answer) and `grade` (grades a non-empty answer). An
    empty answer, a denied one or a refusal scores `lowest()`.
    """

    phrases: ClassVar[bool] = False  # whether "the answer is ..." marks an answer
    refusals: ClassVar[bool] = (
        True  # whether "I cannot answer" counts as no answer (False where the answer is prose or a document)
    )
    joinable: ClassVar[bool] = True  # whether several LaTeX boxes side by side form one answer

    @abstractmethod
    def target(self, gold: Any, scene: Scene) -> Any:
        """Read and check the gold answer, also when the answer is empty. Raises ValueError if the gold answer
        is broken."""

    @abstractmethod
    def grade(self, target: Any, answer: Answer, scene: Scene) -> Grade:
        """Grade a non-empty answer against the result of `target`. Never raises because of the answer."""

    def lowest(self) -> float:
        """The lowest score of the reward; an empty or unreadable answer gets it."""
        return 0.0

    def judge(
        self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None
    ) -> Grade:
        """Grade a whole response without a rollout.

        Args:
            gold: the gold answer, in the form that the reward's docstring names.
            response: the whole text of the model, thinking included.
            scene: context of the answer; default: no coordinate spaces, choices or meta.
            answer: the committed answer, if the caller has already read it.
        Raises:
            GoldError: the gold answer is broken.
        """
        scene = scene or Scene(response=response)
        try:
            target = self.target(gold, scene)
        except ValueError as error:
            raise GoldError(str(error)) from error
        answer = answer or final_answer(response, self.phrases)
        if answer.problem or not answer.text:
            return self.refuse(answer.problem or "the answer is empty")
        if answer.route == "boxes" and not self.joinable:
            return self.refuse("several answers in boxes")
        if self.refusals and _LETTER.search(answer.text) and refuses(answer.text):
            return self.refuse("the response declines to answer")
        return self.grade(target, answer, scene)

    def unreadable(self, answer: Answer, what: str, limit: str = "") -> Grade:
        """The lowest grade of an answer in which `what` was not found; `limit` says which limit of the reader
        the answer exceeds, if it does."""
        limit = limit or (
            f"the answer has more than {MAX_CHARS:,} characters and is not read"
            if len(answer.text) > MAX_CHARS
            else ""
        )
        return self.refuse(f"no {what} in the answer" + (f"; {limit}" if limit else ""))

    def refuse(self, reason: str, extracted: str = "") -> Grade:
        """The lowest grade, marked incorrect."""
        return Grade(self.lowest(), False, reason, extracted)

    def scene_of(self, rollout: Rollout) -> Scene:
        """The context that a rollout and its row provide."""
        return Scene(rollout.spaces, rollout.row.choices, rollout.row.meta, rollout.text)

    def __call__(self, rollout: Rollout) -> float:
        return float(self.judge(rollout.answer, rollout.text, self.scene_of(rollout)).score)


G = TypeVar("G", bound=type[Graded])


def judged(*kinds: str) -> Callable[[G], G]:
    """Class decorator: `verify(..., kind=...)` grades by this reward, under each of the given kinds.

    The options of the kind are the reward's own fields, `correct_at`, `spaces` and `meta`. Where `correct_at`
    is given, the verdict is correct from that score on; otherwise the reward's `grade` decides.
    """

    def add(cls: G) -> G:
        def judge(item: Case, /, **options: Any) -> Verdict:
            spaces, meta = options.pop("spaces", ()), options.pop("meta", {})
            reward: Any = make(cls, options, cls.name) if options else cls()
            answer = final_answer(item.response, reward.phrases)
            grade = reward.judge(
                item.gold, item.response, Scene(spaces, item.choices, meta, item.response), answer
            )
            score = min(1.0, max(0.0, float(grade.score)))
            correct = (
                grade.correct if "correct_at" not in options else grade.score >= options["correct_at"] - 1e-9
            )
            route = f"{answer.route}>{cls.name}"
            extracted = grade.extracted.encode(
                "utf-8", "replace"
            ).decode()  # a lone surrogate (from "\\ud800") cannot be written to a file
            return Verdict(bool(correct), score, grade.reason, extracted or None, answer.span, route)

        parameter = inspect.Parameter
        shared = {f.name for f in fields(Reward)} - {"correct_at"}
        names = [f.name for f in fields(cls) if f.init and f.name not in shared] + ["spaces", "meta"]
        options = [parameter(name, parameter.KEYWORD_ONLY, default=None) for name in names]
        function: Any = judge
        function.__signature__ = inspect.Signature([parameter("item", parameter.POSITIONAL_ONLY), *options])
        function.__module__, function.__qualname__ = cls.__module__, f"judge_{kinds[0]}"
        function.__doc__ = f"Grades by the reward {cls.name!r}: {(cls.__doc__ or '').splitlines()[0]}"
        verifier(*kinds)(function)
        return cls

    return add
