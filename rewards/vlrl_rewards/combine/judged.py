"""LLM-judge rewards: a language model says of a response what no rule can check."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlrl.beside.judge import Judge, Judgement, Question, check_judge, open_judge
from vlrl.beside.service import Usage
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward, State, transient
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.nested import PARTS, OverReward, note, note_correct, number
from vlrl_rewards.parsing import strip_thinking


@dataclass
class JudgeState(State):
    """`judge` is the opened judge; `prepared` are its judgements of the current batch. `asked`, `unread`,
    `failed` and `flipped` count judgements; `usage` is what they cost."""

    judge: Any = transient()
    prepared: dict[Question, Judgement] = transient(factory=dict)
    asked: int = 0
    unread: int = 0
    failed: int = 0
    flipped: int = 0
    usage: dict[str, int] = field(default_factory=lambda: vars(Usage()).copy())

    def state_dict(self) -> dict[str, Any]:
        if self.judge is not None:
            self.usage = dict(vars(self.judge.service.usage))
        return super().state_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        super().load_state_dict(values)
        if self.judge is not None:
            self.judge.service.usage = Usage(**self.usage)


@dataclass(frozen=True, kw_only=True)
class AsksJudge(Reward):
    """Base of rewards that ask a judge: `judge` is {model: name@revision, engine: config of an engine,
    ...} (`vlrl.beside.judge.JudgeConfig`).

    The engine is the judge's own. All questions about a batch are asked at once; replies are cached. Where
    the judge fails, or its reply cannot be read, the rollout has no score: it is dropped and counted
    (judge/failed, judge/no_verdict).
    """

    state_class = JudgeState
    template: ClassVar[str] = "criteria"
    judge: Mapping[str, Any] = field(default_factory=dict)

    def check(self, phase: PhaseContext) -> None:
        if self.judge:
            check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.judge:
            where = f"rewards: {self.name!r}: judge"
            self.state.judge = open_judge(self.judge, run, where, self.template, Usage(**self.state.usage))

    @abstractmethod
    def questions(self, group: Group) -> list[Question]:
        """What the judge is asked about a group."""

    def prepare(self, groups: Sequence[Group]) -> None:
        super().prepare(groups)
        self.state.prepared.clear()
        if self.state.judge is not None:
            wanted = [question for group in groups for question in self._askable(group)]
            distinct = list(dict.fromkeys(wanted))
            self.state.prepared.update(zip(distinct, self.state.judge.ask(distinct), strict=True))

    def _askable(self, group: Group) -> list[Question]:
        try:
            return self.questions(group) if len(group) else []
        except ValueError:  # a broken row: scoring raises for its own group
            return []

    def judgements(self, questions: Sequence[Question]) -> list[Judgement]:
        """The judge's answers. Raises RuntimeError before `setup`."""
        if not questions:
            return []
        judge: Judge | None = self.state.judge
        if judge is None:
            raise RuntimeError(
                f"reward {self.name!r} asks a judge, which is opened when the run begins: it was called "
                "before setup(run)"
            )
        prepared = self.state.prepared
        missing = [question for question in dict.fromkeys(questions) if question not in prepared]
        found = {**prepared, **dict(zip(missing, judge.ask(missing), strict=True))}
        answers = [found[question] for question in questions]
        self.state.asked += len(answers)
        self.state.failed += sum(answer.failed for answer in answers)
        self.state.unread += sum(answer.unread and not answer.failed for answer in answers)
        self.state.flipped += sum(answer.flipped for answer in answers)
        return answers

    def __call__(self, rollout: Rollout) -> float:
        (score,) = self.score_group(Group(rollout.prompt, [rollout]))
        if isinstance(score, NoScore):
            raise score
        return score

    @abstractmethod
    def score_group(self, group: Group) -> list[float | NoScore]: ...

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        if self.state.judge is None:
            return {}
        state, usage = self.state, self.state.judge.service.usage
        prices = self.state.judge.config.prices
        return {
            "judge/no_verdict": (state.unread, state.asked),
            "judge/failed": (state.failed, state.asked),
            "judge/flipped": (state.flipped, state.asked),
            "judge/calls": (usage.calls, 0.0),
            "judge/tokens": (usage.prompt_tokens + usage.reply_tokens, 0.0),
            **({"judge/cost": (usage.cost(prices), 0.0)} if any(prices) else {}),
        }


def shown(rollout: Rollout) -> str:
    """What a judge sees of a response: the text without its thoughts."""
    return strip_thinking(rollout.text)


def criteria_question(rollout: Rollout, criteria: Sequence[str]) -> Question:
    """Whether a response meets all of these criteria."""
    listed = "\n".join(f"- {criterion}" for criterion in criteria)
    values = (("question", rollout.row.question), ("answer", shown(rollout)), ("criteria", listed))
    return Question(values, rollout.prompt.images, rollout.prompt.videos)


def no_score(reward: Reward, judgement: Judgement) -> NoScore:
    """That a rollout has no score, since the judge said nothing that can be read."""
    what = "the judge failed" if judgement.failed else "the judge's reply is no verdict"
    return NoScore(f"reward {reward.name!r}: {what} ({judgement.reason[:200]})")


@register("judged")
@dataclass(frozen=True, kw_only=True)
class Judged(AsksJudge):
    """LLM-judge reward: whether a response keeps all constraints of its row.

        r = 1[the judge says that the response meets all of them]

    The constraints are `row.meta[constraints]`, a list of texts. One question per rollout; those of a batch
    are asked together. Paper: Peng et al. 2025 (VerIF), arXiv:2506.09942; released code: THU-KEG/VerIF,
    verl/utils/reward_score/local_server/llm_call.py, commit 5c86f57: one question about all constraints that
    rules cannot check. Deviates: the words are ours, in English, and ask for yes or no, not for [[1]] or
    [[0]]. Edge: a row without constraints has r = 1, and the judge is not asked; constraints that are no list
    of texts raise ValueError. 0 or 1; with votes or log-probs the mean.
    """

    reads_answer: ClassVar[bool] = False
    constraints: str = "constraints"

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def rules(self, rollout: Rollout) -> float:
        """What the verdict is multiplied with; the judge is not asked where it is 0."""
        return 1.0

    def asked(self, group: Group) -> dict[int, Question]:
        """The questions by place of the rollout; none where the rules give 0."""
        wanted = texts_of(group, self.constraints) if len(group) else []
        return {
            place: criteria_question(rollout, wanted)
            for place, rollout in enumerate(group)
            if wanted and self.rules(rollout)
        }

    def questions(self, group: Group) -> list[Question]:
        return list(self.asked(group).values())

    def score_group(self, group: Group) -> list[float | NoScore]:
        scores: list[float | NoScore] = [self.rules(rollout) for rollout in group]
        asked = self.asked(group)
        for place, judgement in zip(asked, self.judgements(list(asked.values())), strict=True):
            if judgement.value is None:
                scores[place] = no_score(self, judgement)
                continue
            note(group.rollouts[place], "judge", judgement.value)
            scores[place] = self.rules(group.rollouts[place]) * judgement.value
        return scores


@register("rules_and_judge")
@dataclass(frozen=True, kw_only=True)
class RulesAndJudge(Judged, OverReward):
    """VerIF's reward: the rules' score times a judge's verdict on what rules cannot check.

        r = max(0, r_of) 1[the judge says that the response meets all constraints of the row]

    r_of is the score of the reward `of`; the constraints are those of reward `judged`.
    Paper: Peng et al. 2025 (VerIF), arXiv:2506.09942; released code: THU-KEG/VerIF,
    verl/utils/reward_score/local_server/constraint_analyzer.py, commit 5c86f57: the share of the rules kept,
    times the judge's 1 or 0. Deviates: the judge is shown its own constraints alone, and is not asked where
    there are none or where r_of is 0; the words are those of `judged`. Range: that of `of` above 0. A rollout
    is correct where `of` says so and the judge says yes.
    """

    reads_answer: ClassVar[bool] = True
    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "instructions"})

    def rules(self, rollout: Rollout) -> float:
        value = number(self.inner, rollout)
        note(rollout, "rules", value)
        return max(0.0, value)

    def score_group(self, group: Group) -> list[float | NoScore]:
        scores = super().score_group(group)
        for rollout, score in zip(group, scores, strict=True):
            if not isinstance(score, NoScore):
                parts = PARTS[rollout]
                kept = parts.get("judge", 1.0) >= 0.5
                note_correct(self, rollout, self.inner.correct(rollout, parts["rules"]) and kept)
        return scores


@register("judged_answer")
@dataclass(frozen=True, kw_only=True)
class JudgedAnswer(AsksJudge):
    """A judge as verifier: whether the final answer is the reference answer.

        r = 1[the judge says that it is];  r = P(yes) with `judge.logprobs`

    The reference is the row's answer. Paper: Su et al. 2025, arXiv:2503.23829 (binary and soft rewards of a
    generative verifier). Edge: an empty response is wrong, and the judge is not asked. 0 to 1; correct from
    1/2 on.
    """

    template: ClassVar[str] = "correctness"
    correct_at: float = 0.5

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def judged(self, rollout: Rollout) -> str:
        """What the judge sees of a response."""
        return shown(rollout)

    def question(self, rollout: Rollout) -> Question:
        """What the judge is asked about a rollout."""
        row = rollout.row
        values = (
            ("question", row.question),
            ("reference", str(row.answer)),
            ("answer", self.judged(rollout)),
        )
        return Question(values, rollout.prompt.images, rollout.prompt.videos)

    def questions(self, group: Group) -> list[Question]:
        return [self.question(rollout) for rollout in group if self.judged(rollout).strip()]

    def score_group(self, group: Group) -> list[float | NoScore]:
        answered = [place for place, rollout in enumerate(group) if self.judged(rollout).strip()]
        found = dict(zip(answered, self.judgements(self.questions(group)), strict=True))
        return [
            0.0 if place not in found else self.value(rollout, found[place])
            for place, rollout in enumerate(group)
        ]

    def value(self, rollout: Rollout, judgement: Judgement) -> float | NoScore:
        """The reward of a judgement."""
        return no_score(self, judgement) if judgement.value is None else judgement.value


@register("judged_score")
@dataclass(frozen=True, kw_only=True)
class JudgedScore(JudgedAnswer):
    """A judge's rating of a response, without a reference.

        r = (score - low) / (high - low)

    `low` and `high` are the template's (quality: 1 to 10). A rating outside of them is no rating, and is not
    cut. vlrl original (the pointwise form of LLM-as-a-judge, arXiv:2306.05685). Edge: an empty response is
    worth 0. 0 to 1.
    """

    template: ClassVar[str] = "quality"
    needs_gold: ClassVar[bool] = False

    def question(self, rollout: Rollout) -> Question:
        values = (("question", rollout.row.question), ("answer", self.judged(rollout)))
        return Question(values, rollout.prompt.images, rollout.prompt.videos)


Tournament = Literal["all", "circular", "reference"]


@register("judged_pairs")
@dataclass(frozen=True, kw_only=True)
class JudgedPairs(AsksJudge):
    """Win rate of a response against its siblings, by a judge of pairs.

        r_i = mean_j w_ij,  w_ij = 1 if i is better than j, 0 if it is worse, 1/2 for a tie

    `tournament`: "all" pairs, n (n - 1) / 2 questions; "circular": each against the next, n questions;
    "reference": each against one sibling that the row's id draws, whose own r is 1/2. With
    `judge.both_orders` a pair is asked twice, and two different verdicts are a tie.
    Paper: Pref-GRPO, arXiv:2508.20751 (all pairs); NeMo Gym's genrm_compare (circular). Edge: a rollout
    without any verdict has no score; a group of one has 1/2. 0 to 1.
    """

    template: ClassVar[str] = "pair"
    needs_gold: ClassVar[bool] = False
    correct_at: float = 0.5
    tournament: Tournament = "all"

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def pairs(self, group: Group) -> list[tuple[int, int]]:
        """The places of the responses that are compared."""
        n = len(group)
        if self.tournament == "all" or n < 3:
            return [(i, j) for i in range(n) for j in range(i + 1, n)]
        if self.tournament == "circular":
            return [(i, (i + 1) % n) for i in range(n)]
        reference = self.reference(group)
        return [(i, reference) for i in range(n) if i != reference]

    def reference(self, group: Group) -> int:
        """The place of the sibling that all are compared with: a function of the row and the responses."""
        texts = "\x00".join(rollout.text for rollout in group)
        return random.Random(f"{group.row.id}\x00{texts}").randrange(len(group))

    def questions(self, group: Group) -> list[Question]:
        row, texts = group.row, [shown(rollout) for rollout in group]
        media = (group.prompt.images, group.prompt.videos)
        return [
            Question((("question", row.question), ("answer_a", texts[i]), ("answer_b", texts[j])), *media)
            for i, j in self.pairs(group)
        ]

    def wins(self, group: Group) -> dict[tuple[int, int], float | None]:
        """How much better the first of each pair is, in [0, 1]; None without a verdict. Equal responses tie
        unasked."""
        pairs = self.pairs(group)
        answers = self.judgements(self.questions(group))
        return {pair: answer.value for pair, answer in zip(pairs, answers, strict=True)}

    def score_group(self, group: Group) -> list[float | NoScore]:
        if len(group) == 1:
            return [0.5]
        earned: list[list[float]] = [[] for _ in group]
        wins = self.wins(group)
        for (i, j), value in wins.items():
            if value is not None:
                earned[i].append(value)
                earned[j].append(1 - value)
        if self.tournament == "reference" and len(group) > 2:
            earned[self.reference(group)] = [0.5]
        lost = NoScore(f"reward {self.name!r}: no comparison with a sibling could be read")
        return [sum(values) / len(values) if values else lost for values in earned]


def texts_of(group: Group, key: str) -> list[str]:
    """The texts in `meta[key]` of a group's row. Raises ValueError if they are no list of texts."""
    found = group.row.meta.get(key, [])
    if not isinstance(found, (list, tuple)) or not all(
        isinstance(text, str) and text.strip() for text in found
    ):
        raise ValueError(f"row {group.row.id!r}: meta.{key} must be a list of texts, got {found!r}")
    return list(found)
