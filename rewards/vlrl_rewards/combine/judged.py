"""LLM-judge rewards: a language model says whether a response keeps what no rule can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.beside.client import CRITERIA_PROMPT, check_judge, open_judge, quoted
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward, State, transient
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.nested import PARTS, OverReward, note, note_correct, number
from vlrl_rewards.parsing import strip_thinking


@dataclass
class JudgeState(State):
    """`judge` is the opened judge; `asked` and `silent` count verdicts, and replies that were neither yes nor
    no."""

    judge: Any = transient()
    asked: int = 0
    silent: int = 0


@dataclass(frozen=True, kw_only=True)
class AsksJudge(Reward):
    """Base of rewards that ask a judge: `judge` is {model: name@revision, engine: config of an engine,
    max_tokens: of a reply (8)}.

    The engine is the judge's own, greedy, and never loads the policy's weights. Replies are cached in the
    run's folder. A reply that is neither yes nor no counts as no, and in the metric judge/no_verdict. A judge
    that cannot be reached raises, so its rollouts are dropped and counted.
    """

    judge: Mapping[str, Any] = field(default_factory=dict)

    def init_state(self) -> JudgeState:
        return JudgeState()

    def check(self, phase: PhaseContext) -> None:
        if self.judge:
            check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.judge:
            self.state.judge = open_judge(self.judge, run, f"rewards: {self.name!r}: judge")

    def verdicts(self, asked: Sequence[tuple[Rollout, Sequence[str]]]) -> list[bool]:
        """Whether each rollout's visible text meets all of its criteria. Raises RuntimeError before
        `setup`."""
        if not asked:
            return []
        if self.state.judge is None:
            raise RuntimeError(
                f"reward {self.name!r} asks a judge, which is opened when the run begins: it was called "
                "before setup(run)"
            )
        found = self.state.judge.verdicts([judge_prompt(rollout, criteria) for rollout, criteria in asked])
        self.state.asked += len(found)
        self.state.silent += sum(verdict.unread for verdict in found)
        return [verdict.correct for verdict in found]

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"judge/no_verdict": (self.state.silent, self.state.asked)} if self.judge else {}


def judge_prompt(rollout: Rollout, criteria: Sequence[str]) -> str:
    """What a judge is asked about a rollout: the row's question, the response without its thoughts, the
    criteria."""
    listed = "\n".join(f"- {criterion}" for criterion in criteria)
    return CRITERIA_PROMPT.format(
        question=quoted(rollout.row.question), response=quoted(strip_thinking(rollout.text)), criteria=listed
    )


@register("judged")
@dataclass(frozen=True, kw_only=True)
class Judged(AsksJudge):
    """LLM-judge reward: whether a response keeps all constraints of its row.

        r = 1[the judge says that the response meets all of them]

    The constraints are `row.meta[constraints]`, a list of texts. One question per rollout; those of a group
    are asked together. Paper: Peng et al. 2025 (VerIF), arXiv:2506.09942; released code: THU-KEG/VerIF,
    verl/utils/reward_score/local_server/llm_call.py, commit 5c86f57: one question about all constraints that
    rules cannot check. Deviates: the words are ours, in English, and ask for yes or no, not for [[1]] or
    [[0]]. Edge: a row without constraints has r = 1, and the judge is not asked; constraints that are no list
    of texts raise ValueError. 0 or 1.
    """

    reads_answer: ClassVar[bool] = False
    constraints: str = "constraints"

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def rules(self, rollout: Rollout) -> float:
        """What the verdict is multiplied with; the judge is not asked where it is 0."""
        return 1.0

    def __call__(self, rollout: Rollout) -> float:
        return self.score_group(Group(rollout.prompt, [rollout]))[0]

    def score_group(self, group: Group) -> list[float]:
        scores = [self.rules(rollout) for rollout in group]
        wanted = texts_of(group, self.constraints) if len(group) else []
        asked = [place for place, score in enumerate(scores) if score and wanted]
        kept = dict(zip(asked, self.verdicts([(group.rollouts[place], wanted) for place in asked])))
        for place, verdict in kept.items():
            note(group.rollouts[place], "judge", float(verdict))
        return [score * kept.get(place, True) for place, score in enumerate(scores)]


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

    def score_group(self, group: Group) -> list[float]:
        scores = super().score_group(group)
        for rollout in group:
            parts = PARTS[rollout]
            note_correct(
                self, rollout, self.inner.correct(rollout, parts["rules"]) and bool(parts.get("judge", 1.0))
            )
        return scores


def texts_of(group: Group, key: str) -> list[str]:
    """The texts in `meta[key]` of a group's row. Raises ValueError if they are no list of texts."""
    found = group.row.meta.get(key, [])
    if not isinstance(found, (list, tuple)) or not all(
        isinstance(text, str) and text.strip() for text in found
    ):
        raise ValueError(f"row {group.row.id!r}: meta.{key} must be a list of texts, got {found!r}")
    return list(found)
