"""What perception rewards share: the committed answer of a response is graded, in a rollout or alone."""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar

from vlrl.registry import make
from vlrl.stages import Reward
from vlrl.types import Rollout, Space
from vlrl_rewards.kinds import Case, verifier
from vlrl_rewards.literals import fold
from vlrl_rewards.parsing import committed, visible
from vlrl_rewards.text.denials import refuses, taken_back
from vlrl_rewards.verdict import Verdict

_LETTER = re.compile(r"[^\W\d_]")


class Grade(NamedTuple):
    """A score, whether it counts as right, why, and what was read."""

    score: float
    correct: bool
    reason: str = ""
    extracted: str = ""


class Answer(NamedTuple):
    """The text that a response commits to. `tagged`: it stood in answer tags (or a LaTeX box), so it is nothing but the answer."""

    text: str
    tagged: bool
    problem: str = ""
    route: str = "text"
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scene:
    """What a grade may know beside gold and answer: coordinate spaces, choices, the row's `meta`, and the whole response (thinking included)."""

    spaces: Sequence[Space] = ()
    choices: Sequence[str] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    response: str = ""


def members(gold: Any, field_name: str = "answer") -> list[Any]:
    """A gold list (text is split at commas). Raises ValueError if it is neither a list nor text."""
    if isinstance(gold, str):
        return [part for part in gold.split(",") if part.strip()]
    if not isinstance(gold, (list, tuple, set, frozenset)):
        raise ValueError(f"{field_name}: {gold!r} is not a list; give [..., ...]")
    return list(gold)


def final_answer(response: str, phrases: bool = False) -> Answer:
    """The last answer in tags outside the thinking; else (if `phrases`) after "the answer is"; else all that is visible; folded as by `fold`."""
    found = committed(response, None if phrases else _no_phrase)
    if found is None:
        return Answer(fold(visible(response)).strip(), False)
    rest = visible(response)[found.end :].lstrip().removeprefix("</answer>")
    problem = found.problem or ("the answer is taken back" if taken_back(rest) else "")
    return Answer(fold(found.text).strip(), found.route != "phrase", problem, found.route, found.span)


def _no_phrase(_text: str) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Graded(Reward):
    """A reward that grades the committed answer alone. An empty answer gets `lowest()`, the least the grade can give."""

    phrases: ClassVar[bool] = False  # whether "the answer is ..." is read as an answer
    refusals: ClassVar[bool] = True  # whether "I cannot answer" makes the answer none (not where the answer is prose, or a document)
    joinable: ClassVar[bool] = True  # whether several boxed texts side by side are one answer

    @abstractmethod
    def target(self, gold: Any, scene: Scene) -> Any:
        """The gold answer, read and checked. Raises ValueError if it is broken (also where the answer is empty)."""

    @abstractmethod
    def grade(self, target: Any, answer: Answer, scene: Scene) -> Grade:
        """Judge a non-empty answer against what `target` read. Never raises."""

    def lowest(self) -> float:
        """The score of an answer that says nothing."""
        return 0.0

    def judge(self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None) -> Grade:
        """Judge a whole response, without a rollout. Raises ValueError on a broken gold answer. `answer`: what it commits to, if that is known."""
        scene = scene or Scene(response=response)
        target = self.target(gold, scene)
        answer = answer or final_answer(response, self.phrases)
        if answer.problem or not answer.text:
            return self.refuse(answer.problem or "the answer is empty")
        if answer.route == "boxes" and not self.joinable:
            return self.refuse("several answers in boxes")
        if self.refusals and _LETTER.search(answer.text) and refuses(answer.text):
            return self.refuse("the response declines to answer")
        return self.grade(target, answer, scene)

    def refuse(self, reason: str, extracted: str = "") -> Grade:
        """The lowest grade."""
        return Grade(self.lowest(), False, reason, extracted)

    def scene_of(self, rollout: Rollout) -> Scene:
        """What a rollout knows."""
        return Scene(rollout.spaces, rollout.row.choices, rollout.row.meta, rollout.text)

    def __call__(self, rollout: Rollout) -> float:
        return float(self.judge(rollout.answer, rollout.text, self.scene_of(rollout)).score)


G = TypeVar("G", bound=type[Graded])


def judged(*kinds: str) -> Callable[[G], G]:
    """Class decorator: `verify(..., kind=...)` judges by this reward; its fields, `spaces` and `meta` are the kind's options."""

    def add(cls: G) -> G:
        def judge(item: Case, /, **options: Any) -> Verdict:
            spaces, meta = options.pop("spaces", ()), options.pop("meta", {})
            reward: Any = make(cls, options, cls.name) if options else cls()
            answer = final_answer(item.response, reward.phrases)
            grade = reward.judge(item.gold, item.response, Scene(spaces, item.choices, meta, item.response), answer)
            score = min(1.0, max(0.0, float(grade.score)))
            route = f"{answer.route}>{cls.name}"
            extracted = grade.extracted.encode("utf-8", "replace").decode()  # half a surrogate pair, from "\\ud800", cannot be written to a file
            return Verdict(bool(grade.correct), score, grade.reason, extracted or None, answer.span, route)

        parameter = inspect.Parameter
        shared = {f.name for f in fields(Reward)}
        names = [f.name for f in fields(cls) if f.init and f.name not in shared] + ["spaces", "meta"]
        options = [parameter(name, parameter.KEYWORD_ONLY, default=None) for name in names]
        judge.__signature__ = inspect.Signature([parameter("item", parameter.POSITIONAL_ONLY), *options])  # type: ignore[attr-defined]
        judge.__module__, judge.__qualname__ = cls.__module__, f"judge_{kinds[0]}"
        judge.__doc__ = f"Judges by the reward {cls.name!r}: {(cls.__doc__ or '').splitlines()[0]}"
        verifier(*kinds)(judge)
        return cls

    return add
