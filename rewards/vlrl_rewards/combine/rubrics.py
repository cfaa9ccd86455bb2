"""Rubrics: points for every criterion that a rule finds met."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from vlrl.registry import build, register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.combine.nested import note, number


@register("rubric")
@dataclass(frozen=True, kw_only=True)
class Rubric(Reward):
    """Rubric with rule-based criteria.

        r = points of the criteria met / positive points

    The criteria are `row.meta["rubrics"]`.
    A criterion is {criterion: its text, points: positive for a wanted property, negative for an unwanted one, reward: the rule}. The rule is the
    config of a reward; the criterion is met where it scores above `met_above`. It reads the criterion's own `answer`, else the row's.
    Paper: Zhou et al. 2025 (RuscaRL), arXiv:2508.16949; checked against calculate_score of healthbench_reward_fn.py, which also checks some
    criteria by rules. Deviates: criteria that need an LLM judge are refused. Edge: no criteria, only negative points, or a criterion without a rule
    raise ValueError; the score may be negative, as in the release.
    """

    met_above: float = 0.5
    reads_answer: ClassVar[bool] = False

    @cached_property
    def rules(self) -> dict[str, Reward]:
        """The rules that were built so far, by their configs."""
        return {}

    def rule(self, item: Mapping[str, Any], where: str) -> Reward:
        """The reward of a criterion, built once."""
        if not {"criterion", "points", "reward"} <= set(item):
            raise ValueError(
                f"{where}: a criterion needs criterion, points and reward (its rule), got {sorted(item)}; criteria without a rule need an LLM judge"
            )
        key = json.dumps(item["reward"], sort_keys=True)
        if key not in self.rules:
            self.rules[key] = build(Reward, item["reward"], f"{where}.reward")
        return self.rules[key]

    def __call__(self, rollout: Rollout) -> float:
        row = rollout.row
        items: Sequence[Mapping[str, Any]] = row.meta.get("rubrics", ())
        possible = sum(max(item.get("points", 0), 0) for item in items)
        if not possible:
            raise ValueError(f"row {row.id!r}: meta.rubrics has no criterion with points above 0")
        earned = 0.0
        for index, item in enumerate(items):
            rule = self.rule(item, f"row {row.id!r}: meta.rubrics[{index}]")
            asked = replace(rollout, prompt=replace(rollout.prompt, row=replace(row, answer=item.get("answer", row.answer))))
            met = number(rule, asked) > self.met_above
            earned += item["points"] * met
            note(rollout, str(item["criterion"])[:60], float(met))
        return earned / possible
