"""CRM's conciseness reward: brevity pays only where the answer is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.beside.judge import Question, check_judge
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import NoScore
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.judged import AsksJudge, no_score
from vlrl_rewards.combine.nested import OverReward, note, note_correct, number


@register("concise_answer")
@dataclass(frozen=True, kw_only=True)
class ConciseAnswer(AsksJudge, OverReward):
    """CRM's conciseness reward function: the outcome, and more for a right answer with a concise reasoning.

        r_i = o_i [1 + alpha c_i (s + d)],  s from `first` to `last` over the phase's steps

    o is the score of `of`, c in [0, 1] the judge's rating of the whole response, thoughts included, d the
    share of the group that is right. The judge is asked about right responses alone, so that a wrong one has
    no credit for being short. Paper: Wang et al. 2025 (CRM), arXiv:2511.09158 (the form as in public
    reviews of it). Ours: what d is, and that s falls along a line from 1 to 0.
    Edge: a rating that cannot be read leaves no score; below 0 o is as it is. Correct where `of` says so.
    """

    template: ClassVar[str] = "conciseness"
    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "math"})
    alpha: float = 0.5
    first: float = 1.0
    last: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or min(self.first, self.last) < 0:
            raise ConfigError(
                f"rewards: {self.name!r}: alpha={self.alpha}, first={self.first} and last={self.last} must "
                "not be negative"
            )

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"rewards: {self.name!r}: judge")

    def annealed(self) -> float:
        """s now; `first` before the run."""
        steps = self.run.settings.steps if self.is_set_up else 1
        passed = min(self.run.phase_step / (steps - 1), 1.0) if steps > 1 else 0.0
        return self.first + (self.last - self.first) * passed

    def outcomes(self, group: Group) -> list[tuple[float, bool]]:
        """(score, whether it is right) of each rollout, by `of`."""
        scores = [number(self.inner, rollout) for rollout in group]
        return [(score, self.inner.correct(rollout, score)) for rollout, score in zip(group, scores)]

    def question(self, rollout: Rollout) -> Question:
        """What the judge is asked about a rollout."""
        values = (("question", rollout.row.question), ("answer", rollout.text))
        return Question(values, rollout.prompt.images, rollout.prompt.videos)

    def questions(self, group: Group) -> list[Question]:
        found = zip(group, self.outcomes(group), strict=True)
        return [self.question(rollout) for rollout, (_, right) in found if right]

    def score_group(self, group: Group) -> list[float | NoScore]:
        found = self.outcomes(group)
        asked = [place for place, (_, right) in enumerate(found) if right]
        judged = dict(
            zip(asked, self.judgements([self.question(group.rollouts[i]) for i in asked]), strict=True)
        )
        factor = self.alpha * (self.annealed() + len(asked) / max(len(group), 1))
        scores: list[float | NoScore] = []
        for place, (rollout, (score, right)) in enumerate(zip(group, found, strict=True)):
            note_correct(self, rollout, right)
            rating = judged.get(place)
            if rating is None:
                scores.append(score)
            elif rating.value is None:
                scores.append(no_score(self, rating))
            else:
                note(rollout, "conciseness", rating.value)
                scores.append(score * (1 + factor * rating.value))
        return scores
