"""Rubrics: points for every criterion that a rule, or a judge, finds met."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from vlrl.beside.judge import Judgement, Question, check_judge
from vlrl.beside.rubrics import load_rubric
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import build, register
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout, Row
from vlrl_rewards.combine.judged import AsksJudge, criteria_question, no_score
from vlrl_rewards.combine.nested import note, number


@register("rubric")
@dataclass(frozen=True, kw_only=True)
class Rubric(AsksJudge):
    """Rubric of criteria that rules or a judge check.

        r = points of the criteria met / positive points

    The criteria are `row.meta["rubrics"]`: {criterion: its text, points: negative for an unwanted property,
    reward: the config of a rule, answer: what it reads (the row's), veto: true}. A rule is met above
    `met_above`; a criterion without one is met where the judge says so. A `veto` that is not met (of negative
    points: that is met) makes r at most 0. Paper: Zhou et al. 2025 (RuscaRL), arXiv:2508.16949; checked
    against healthbench_reward_fn.py. Deviates: rewards/DEVIATIONS.md. Edge: no criteria, only negative
    points, or a criterion without rule and judge raise ValueError; r may be negative, as in the release; a
    criterion without a verdict leaves no score.

    Attributes:
        bank: A packaged rubric, or a YAML file, whose criteria every row has besides its own.
    """

    met_above: float = 0.5
    bank: str = ""
    reads_answer: ClassVar[bool] = False

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if self.bank and not self.judge and any("reward" not in item for item in load_rubric(self.bank)):
            check_judge(self.judge, f"rewards: {self.name!r}: judge")

    @cached_property
    def built(self) -> dict[str, Reward]:
        """The rules that were built so far, by their configs."""
        return {}

    def rule(self, spec: Any, where: str) -> Reward:
        """The reward of a criterion, built once."""
        key = json.dumps(spec, sort_keys=True)
        if key not in self.built:
            self.built[key] = build(Reward, spec, where)
            if self.is_set_up:
                self.built[key].setup(self.run)
        return self.built[key]

    def criteria(self, row: Row) -> list[Mapping[str, Any]]:
        """The criteria of a row. Raises ValueError for those that cannot be scored."""
        items = [*row.meta.get("rubrics", ()), *(load_rubric(self.bank) if self.bank else ())]
        if not sum(max(item.get("points", 0), 0) for item in items):
            raise ValueError(f"row {row.id!r}: meta.rubrics has no criterion with points above 0")
        for index, item in enumerate(items):
            where = f"row {row.id!r}: meta.rubrics[{index}]"
            if not {"criterion", "points"} <= set(item):
                raise ValueError(f"{where}: a criterion needs criterion and points, got {sorted(item)}")
            if "reward" not in item and not self.judge:
                raise ValueError(
                    f"{where}: a criterion without a rule (`reward`) needs a judge; set `judge` of the "
                    "reward 'rubric'"
                )
        return items

    def met_by_rule(self, rollout: Rollout, item: Mapping[str, Any], where: str) -> bool:
        """Whether a criterion's rule scores above `met_above`."""
        row = rollout.row
        asked = replace(
            rollout, prompt=replace(rollout.prompt, row=replace(row, answer=item.get("answer", row.answer)))
        )
        return number(self.rule(item["reward"], f"{where}.reward"), asked) > self.met_above

    def judged(self, group: Group) -> list[tuple[int, int]]:
        """(rollout, criterion) of each question to the judge."""
        items = self.criteria(group.row)
        without = [index for index, item in enumerate(items) if "reward" not in item]
        return [(place, index) for place in range(len(group)) for index in without]

    def question(self, rollout: Rollout, item: Mapping[str, Any]) -> Question:
        """What the judge is asked about a criterion."""
        return criteria_question(rollout, [str(item["criterion"])])

    def share(self, item: Mapping[str, Any], judgement: Judgement) -> float | None:
        """How far a criterion is met, by the judge; None without a verdict."""
        return judgement.value

    def questions(self, group: Group) -> list[Question]:
        items = self.criteria(group.row)
        return [self.question(group.rollouts[place], items[index]) for place, index in self.judged(group)]

    def score_group(self, group: Group) -> list[float | NoScore]:
        if not len(group):
            return []
        items = self.criteria(group.row)
        judged = dict(zip(self.judged(group), self.judgements(self.questions(group)), strict=True))
        return [
            self.points(rollout, items, {index: judged.get((place, index)) for index in range(len(items))})
            for place, rollout in enumerate(group)
        ]

    def points(
        self,
        rollout: Rollout,
        items: Sequence[Mapping[str, Any]],
        judged: Mapping[int, Judgement | None],
    ) -> float | NoScore:
        """The score of a rollout, from the judge's answers about the criteria without a rule."""
        met: list[float] = []
        for index, item in enumerate(items):
            answer = judged[index]
            if answer is None:
                where = f"row {rollout.row.id!r}: meta.rubrics[{index}]"
                met.append(float(self.met_by_rule(rollout, item, where)))
            elif (share := self.share(item, answer)) is None:
                return no_score(self, answer)
            else:
                met.append(share)
            note(rollout, str(item["criterion"])[:60], met[-1])
        return self.total(items, met)

    def total(self, items: Sequence[Mapping[str, Any]], met: Sequence[float]) -> float:
        """The score, from how far each criterion is met (0 to 1)."""
        earned = sum(item["points"] * share for item, share in zip(items, met, strict=True))
        score = earned / sum(max(item["points"], 0) for item in items)
        return min(score, 0.0) if vetoed(items, met) else score


def vetoed(items: Sequence[Mapping[str, Any]], met: Sequence[float]) -> bool:
    """Whether a criterion with `veto` fails: a wanted one is not met, an unwanted one is."""
    return any(
        item.get("veto") and (share < 0.5 if item["points"] > 0 else share >= 0.5)
        for item, share in zip(items, met, strict=True)
    )
