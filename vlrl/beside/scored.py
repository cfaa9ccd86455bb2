"""A reward model in the form in which attacks and labelled data ask a judge: it has scores, no verdict."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.beside.judge import Judgement, Question
from vlrl.beside.process import ProcessRewardModel
from vlrl.beside.process_bench import Solution, first_wrong
from vlrl.beside.service import Usage
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row


@dataclass(frozen=True)
class ScoredByModel:
    """A reward by a reward model that is set up.

    A wrong answer is accepted where it scores at least as high as the best form of the right one, and a form
    of the right answer is rejected where it does not score above the near miss: no number by itself says that
    an answer is right. Of labelled answers alone, `correct_at` says so, as in a run.
    """

    reward: Reward
    form: ClassVar[str] = "value"
    fields: ClassVar[tuple[str, ...]] = ("question", "reference", "answer")
    usage: ClassVar[Usage] = Usage()
    prices: ClassVar[tuple[float, float]] = (0.0, 0.0)

    @property
    def name(self) -> str:
        """The reward's."""
        return self.reward.name

    @property
    def middle(self) -> float:
        """The score from which on an answer counts as right."""
        return self.reward.correct_at

    def ask(self, questions: Sequence[Question], seed: int = 0) -> list[Judgement]:
        """The scores of the answers, those to a question together. Raises ConfigError for pictures, and for a
        reward that scores later."""
        if any(question.images or question.videos for question in questions):
            raise ConfigError(
                f"judge check: records have pictures, which the model of reward {self.name!r} cannot see; "
                "give it data of texts"
            )
        asked = [dict(question.values) for question in questions]
        groups: dict[tuple[str, str], Group] = {}
        rollouts: list[Rollout] = []
        for values in asked:
            key = (values["question"], values["reference"])
            if key not in groups:
                groups[key] = Group(prompt_of(*key, len(groups)), [])
            rollouts.append(Rollout(groups[key].prompt, [], values["answer"], []))
            groups[key].rollouts.append(rollouts[-1])
        self.reward.prepare(list(groups.values()))
        found: dict[int, Any] = {}
        for group in groups.values():
            scores = self.reward.score_group(group)
            if inspect.isawaitable(scores):
                raise ConfigError(f"judge check: reward {self.name!r} scores later, which is not measured")
            found |= {id(rollout): score for rollout, score in zip(group, scores, strict=True)}
        return [judgement_of(found[id(rollout)]) for rollout in rollouts]

    def first_wrong_steps(self, solutions: Sequence[Solution]) -> list[int | None]:
        """The first step that a process reward model calls wrong, -1 for none. Raises ConfigError for a model
        of whole responses."""
        model = getattr(self.reward, "opened", None)
        if not isinstance(model, ProcessRewardModel):
            raise ConfigError(
                f"judge check: the model of reward {self.name!r} scores whole responses, and ProcessBench "
                "asks for the first wrong step; use step_reward_model, or a judge"
            )
        render = self.reward.run.policy.render
        asked = [(render(prompt_of(one.question, "", 0)), one.steps) for one in solutions]
        return [first_wrong([(1 + score) / 2 for score in scores]) for scores in model.scores(asked)]


def prompt_of(question: str, reference: str, number: int) -> Prompt:
    """A question alone, as a user's message."""
    row = Row(f"question {number}", question, reference or None)
    return Prompt(row, ({"role": "user", "content": question},))


def judgement_of(score: Any) -> Judgement:
    """A score as a judgement; `NoScore` is no verdict."""
    return Judgement(reason=str(score)) if isinstance(score, NoScore) else Judgement(float(score))
