"""Rewards of papers that ask a judge, or train one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from vlrl.beside.judge import Judgement, Question, check_judge
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.judged import AsksJudge, JudgedAnswer, JudgedPairs, no_score
from vlrl_rewards.combine.nested import note
from vlrl_rewards.parsing import strip_thinking

_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TAGGED = re.compile(r"<answer>([^<]*)</answer>")
_SAID = tuple(
    re.compile(rf"{words}:\s*((?:[^\n<]|<(?!<))*)\n", re.IGNORECASE)
    for words in ("final answer", "final answer is", "the answer is", "answer", "solution", "the solution is")
)


@register("general_verifier")
@dataclass(frozen=True, kw_only=True)
class GeneralVerifier(JudgedAnswer):
    """General-Reasoner's reward: a small verifier's verdict on the final answer, less for an answer whose
    length is not the reference's.

        r = 1 - 0.05 min(|tokens of the answer - tokens of the reference|, 10)  where the verdict is yes
        r = 0 where it is no,  -0.5 without an answer

    The answer is the last `\\boxed{}`, else the line behind the last "Answer:", "Solution:", "The answer is:"
    or the like, which must end with a line break.
    Paper: Ma et al. 2025 (General-Reasoner), arXiv:2505.14652; released code: TIGER-AI-Lab/General-Reasoner
    at 007e44cb, verifier.py. Deviates: only the response is searched (there the last 1,024 tokens with the
    prompt); the texts are fenced; a reply without a verdict leaves no score (there it is 0); without a run
    tokens are words. -0.5 to 1; correct where the verdict is yes.
    """

    template: ClassVar[str] = "general_verifier"
    penalty: float = 0.05
    most: int = 10
    unanswered: float = -0.5

    def question(self, rollout: Rollout) -> Question:
        values = (
            ("question", rollout.row.question),
            ("reference", str(rollout.row.answer)),
            ("answer", final_answer(rollout.text) or "No Answer"),
        )
        return Question(values)

    def questions(self, group: Group) -> list[Question]:
        return [self.question(rollout) for rollout in group if final_answer(rollout.text)]

    def score_group(self, group: Group) -> list[float | NoScore]:
        answered = [place for place, rollout in enumerate(group) if final_answer(rollout.text)]
        found = dict(zip(answered, self.judgements(self.questions(group)), strict=True))
        return [
            self.value(rollout, found[place]) if place in found else self.unanswered
            for place, rollout in enumerate(group)
        ]

    def value(self, rollout: Rollout, judgement: Judgement) -> float | NoScore:
        if judgement.value is None:
            return no_score(self, judgement)
        sizes = [self.tokens(text) for text in (final_answer(rollout.text), str(rollout.row.answer))]
        short = self.penalty * min(abs(sizes[0] - sizes[1]), self.most)
        return judgement.value - short if judgement.value >= 0.5 else 0.0

    def tokens(self, text: str) -> int:
        """The length of a text."""
        if self.is_set_up and self.run.policy is not None:
            return len(self.run.policy.encode_text(text))
        return len(text.split())


def final_answer(text: str) -> str:
    """The answer that a response gives: the last box, else the whole line behind the last "The answer is:";
    "" without any."""
    boxes = _BOXED.findall(text)
    if boxes and boxes[-1]:
        return boxes[-1].strip()
    lines = text[: text.rfind("\n") + 1]
    said = [(found.start(), found[1]) for form in _SAID for found in form.finditer(lines)]
    return max(said, key=lambda one: one[0])[1].strip() if said else ""


@register("judged_reference")
@dataclass(frozen=True, kw_only=True)
class JudgedReference(JudgedPairs):
    """BRPO's reward: +1 for a response that beats the group's reference, -1 for one that does not, 0 for the
    reference.

    The reference is one of the group, drawn by row and responses; a win counts only in both orders
    (`judge.both_orders`) and in all votes. Paper: Jia et al. 2025 (Writing-Zero), arXiv:2506.00103, sec. 3.3.
    Edge: a response without a verdict has no score; a group of one has 0. -1 to 1; correct where it wins.
    """

    correct_at: float = 1.0

    def pairs(self, group: Group) -> list[tuple[int, int]]:
        reference = self.reference(group)
        return [(place, reference) for place in range(len(group)) if place != reference]

    def score_group(self, group: Group) -> list[float | NoScore]:
        if len(group) == 1:
            return [0.0]
        scores: list[float | NoScore] = [0.0] * len(group)
        for (place, _), judgement in zip(
            self.pairs(group), self.judgements(self.questions(group)), strict=True
        ):
            value = judgement.value
            won = value is not None and value > 1 - 1e-9
            scores[place] = no_score(self, judgement) if value is None else (1.0 if won else -1.0)
        return scores


FAITHFUL = (
    "Everything that the response says is in the picture is there, and is as it says: no object, text, "
    "number or relation is invented or wrong"
)
SUFFICIENT = (
    "Someone who reads the response and never sees the picture could answer the question: nothing that it "
    "needs is left out"
)


@register("judged_description")
@dataclass(frozen=True, kw_only=True)
class JudgedDescription(AsksJudge):
    """PeRL-VL's description reward: a judge that sees the picture says whether the response's description of
    it is faithful, and whether it is sufficient to answer the question.

        r = (faithful + sufficient) / 2

    The description stands in the response's only pair of <`tag`> tags; the judge is asked about it alone,
    once for each of the two. Paper: Just et al. 2025 (PeRL-VL), arXiv:2512.12487, abstract; no code was
    found: the words, the two separate questions and their mean are ours. Edge: without a description, or with
    several, r = 0 and the judge is not asked; where one verdict is missing there is no score. Range: 0 to 1.
    """

    reads_answer: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    tag: str = "description"

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    @property
    def form_marks(self) -> tuple[str, ...]:
        return (f"<{self.tag}>",)

    def described(self, rollout: Rollout) -> str:
        """The description of a response; "" where there is none, or more than one."""
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        if rollout.text.count(opening) != 1 or rollout.text.count(closing) != 1:
            return ""
        return rollout.text.partition(opening)[2].partition(closing)[0].strip()

    def asked(self, rollout: Rollout) -> list[Question]:
        """The two questions about a response; none where it describes nothing."""
        text, prompt = self.described(rollout), rollout.prompt
        return [
            Question(
                (("question", rollout.row.question), ("answer", text), ("criteria", f"- {criterion}")),
                prompt.images,
                prompt.videos,
            )
            for criterion in (FAITHFUL, SUFFICIENT)
            if text
        ]

    def questions(self, group: Group) -> list[Question]:
        return [question for rollout in group for question in self.asked(rollout)]

    def score_group(self, group: Group) -> list[float | NoScore]:
        found = iter(self.judgements(self.questions(group)))
        scores: list[float | NoScore] = []
        for rollout in group:
            verdicts = [next(found) for _ in self.asked(rollout)]
            unread = next((verdict for verdict in verdicts if verdict.value is None), None)
            values = [verdict.value or 0.0 for verdict in verdicts]
            for name, value in zip(("faithful", "sufficient"), values if unread is None else ()):
                note(rollout, name, value)
            scores.append(no_score(self, unread) if unread is not None else sum(values) / 2)
        return scores


@register("final_verdict")
@dataclass(frozen=True, kw_only=True)
class FinalVerdict(Reward):
    """RM-R1's reward for a judge that is trained: +1 for the labelled verdict at the very end, else -1.

        r = 1 if "<answer>[[X]]</answer>" is in the last `last` characters, X the label, and no other one is

    The row's answer is the label, one of `labels`; `choices` are what the response writes for them.
    Paper: Chen et al. 2025 (RM-R1), arXiv:2505.02387; released code: RM-R1-UIUC/RM-R1 at d4c2542f,
    rm_r1/verl/utils/reward_score/lm_as_judge.py. Deviates: a second answer tag there, of any
    label, is no verdict, and neither is one in the thinking. Edge: another label raises GoldError. -1 or 1.
    """

    last: int = 80
    labels: tuple[str, ...] = ("1", "2")
    choices: tuple[str, ...] = ("A", "B")

    def __call__(self, rollout: Rollout) -> float:
        label = str(rollout.row.answer)
        if label not in self.labels:
            raise GoldError(
                f"row {rollout.row.id!r}: the answer {label!r} is no label; "
                f"use one of {', '.join(self.labels)}"
            )
        written = _TAGGED.findall(strip_thinking(rollout.text)[-self.last :])
        wanted = [f"[[{choice}]]" for own, choice in zip(self.labels, self.choices) if own == label]
        return 1.0 if written == wanted else -1.0


@register("pointwise_scores")
@dataclass(frozen=True, kw_only=True)
class PointwiseScores(Reward):
    """SPCT's reward for a pointwise judge that is trained: +1 if its scores tell the best response, else -1.

        r = 1 if S_j > S_i for all i != j, j the labelled best;  n = 1: if S_1 is the label

    The scores are the numbers behind "Scores:", which is there once; the row's answer is j, from 1, or the
    only score. There is no reward for the form. Paper: Liu et al. 2025 (SPCT), arXiv:2504.02495, eq. 10.
    Edge: another number of scores than `count`, one out of `low` to `high`, or scores in the thinking, are
    -1. -1 or 1.
    """

    count: int = 2
    low: float = 1.0
    high: float = 10.0

    def __call__(self, rollout: Rollout) -> float:
        label = str(rollout.row.answer).strip()
        if not label.isdecimal():
            raise GoldError(
                f"row {rollout.row.id!r}: the answer {label!r} is no number of a response, from 1"
            )
        best = int(label)
        if not 1 <= best <= (self.count if self.count > 1 else self.high):
            raise GoldError(f"row {rollout.row.id!r}: the answer {best} is none of {self.count} responses")
        _, *written = strip_thinking(rollout.text).split("Scores:")
        scores = [float(number) for number in _NUMBER.findall(written[0])] if len(written) == 1 else []
        inside = all(self.low <= score <= self.high for score in scores)
        if len(scores) != self.count or not inside:
            return -1.0
        if self.count == 1:
            return 1.0 if scores[0] == best else -1.0
        others = [score for place, score in enumerate(scores, 1) if place != best]
        return 1.0 if scores[best - 1] > max(others) else -1.0
