"""Problems whose answer is a number and the selection that proves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import last_answer

_SHAPE = re.compile(r"(\d{1,6})\s*[:;]\s*\[?\s*((?:\d{1,6}[\s,]*){0,200})\]?", re.ASCII)


@register("sequence")
@dataclass(frozen=True, kw_only=True)
class SequenceReward(Reward):
    """value: 1[number = gold];  ids: 1[ids = gold];  prefix: length of the common prefix of ids / gold length;  both: 1[number and ids];
    consistent: 1[number = how many ids are given], whether they are right or not.

    Paper: arXiv:2510.27044 (answer only, exact ids, prefix ids; the last is its check that the shown sequence supports the answer). The gold answer
    is {"value": n, "ids": [...]}, the response `n: id id ...`. Edge: an answer of another shape, or without any id where ids count, scores 0; with
    more ids than gold, prefix is a share of them. Raises ValueError for a row whose gold answer has no value and ids.
    """

    mode: Literal["value", "ids", "prefix", "both", "consistent"] = "both"

    def __call__(self, rollout: Rollout) -> float:
        gold = rollout.answer
        if not isinstance(gold, Mapping) or not isinstance(gold.get("value"), int) or not gold.get("ids"):
            raise ValueError(f"row {rollout.row.id!r}: the gold answer must be a mapping with value and ids, got {gold!r}")
        shape = _SHAPE.fullmatch(last_answer(rollout.text).strip())
        if not shape:
            return 0.0
        value, ids = int(shape.group(1)), [int(item) for item in re.findall(r"\d+", shape.group(2), re.ASCII)]
        wanted = [int(item) for item in gold["ids"]]
        same = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), min(len(ids), len(wanted)))
        scores = {
            "value": float(value == gold["value"]), "ids": float(ids == wanted), "prefix": same / max(len(ids), len(wanted)),
            "both": float(value == gold["value"] and ids == wanted), "consistent": float(value == len(ids) > 0),
        }  # fmt: skip
        return scores[self.mode]
