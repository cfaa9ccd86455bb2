"""Rubrics: points for every criterion that a rule, or a judge, finds met."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout, Row
from vlrl_rewards.combine.judged import AsksJudge
from vlrl_rewards.combine.nested import note, number


@register("rubric")
@dataclass(frozen=True, kw_only=True)
class Rubric(AsksJudge):
    """Rubric of criteria that rules or a judge check.

        r = points of the criteria met / positive points

    The criteria are `row.meta["rubrics"]`. A criterion is {criterion: its text, points: negative for an
    unwanted property, reward: the config of a rule}, met where the rule scores above `met_above`. The rule
    reads the criterion's own `answer`, else the row's. A criterion without a rule is met where the judge says
    so . Paper: Zhou et al. 2025 (RuscaRL), arXiv:2508.16949; checked against calculate_score and
    grade_single_example of healthbench_reward_fn.py . Deviates: rewards/DEVIATIONS.md. Edge: no criteria,
    only negative points, or a criterion without a rule and no `judge` raise ValueError; the score may be
    negative, as in the release.
    """

    met_above: float = 0.5
    reads_answer: ClassVar[bool] = False

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
        items = list(row.meta.get("rubrics", ()))
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

    def __call__(self, rollout: Rollout) -> float:
        return self.score_group(Group(rollout.prompt, [rollout]))[0]

    def score_group(self, group: Group) -> list[float]:
        if not len(group):
            return []
        row = group.row
        items = self.criteria(row)
        asked = [(rollout, item) for rollout in group for item in items if "reward" not in item]
        verdicts = iter(self.verdicts([(rollout, [str(item["criterion"])]) for rollout, item in asked]))
        scores = []
        for rollout in group:
            earned = 0.0
            for index, item in enumerate(items):
                met = (
                    self.met_by_rule(rollout, item, f"row {row.id!r}: meta.rubrics[{index}]")
                    if "reward" in item
                    else next(verdicts)
                )
                earned += item["points"] * met
                note(rollout, str(item["criterion"])[:60], float(met))
            scores.append(earned / sum(max(item["points"], 0) for item in items))
        return scores
