"""Optimisation problems whose answer is a number and the sequence of item ids that attains it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import committed_answer

_FORMAT = re.compile(
    r"(\d{1,6})\s*[:;]\s*(?:\[\s*)?((?:\d{1,6}(?:[\s,]+\d{1,6}){0,199}[\s,]*)?)\]?", re.ASCII
)


@register("sequence")
@dataclass(frozen=True, kw_only=True)
class SequenceReward(Graded):
    """Answer and certificate reward: the number, and the sequence of ids that supports it.

        value: 1[number = gold];  ids: 1[ids = gold];  both: 1[number and ids = gold];
        prefix: length of the common prefix of the ids / max(number of ids given, gold length);
        consistent: 1[number = number of ids given], whether the ids are correct or not

    Paper: arXiv:2510.27044 (answer only, exact ids, prefix ids; "consistent" is its check that the shown
    sequence supports the answer). Gold: {"value": n, "ids": [...]}. Answer: `n: id id ...`, at most 200 ids.
    Edge: an answer in another format, or without ids where ids count: 0. Raises ValueError if the gold answer
    has no value and ids. Range [0, 1].
    """

    mode: Literal["value", "ids", "prefix", "both", "consistent"] = "both"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if not isinstance(gold, Mapping) or not isinstance(gold.get("value"), int) or not gold.get("ids"):
            raise GoldError(
                f"row {row.id!r}: the gold answer must be {{'value': int, 'ids': [int, ...]}}, got {gold!r}"
            )
        answer = committed_answer(response)
        match = _FORMAT.fullmatch(answer.text)
        if not match:
            raise Unread("not a number and its ids", answer)
        value, ids = int(match[1]), [int(item) for item in re.findall(r"\d+", match[2], re.ASCII)]
        gold_ids = [int(item) for item in gold["ids"]]
        prefix = next(
            (i for i, (a, b) in enumerate(zip(ids, gold_ids)) if a != b), min(len(ids), len(gold_ids))
        )
        scores = {
            "value": float(value == gold["value"]),
            "ids": float(ids == gold_ids),
            "both": float(value == gold["value"] and ids == gold_ids),
            "prefix": prefix / max(len(ids), len(gold_ids)),
            "consistent": float(value == len(ids) > 0),
        }
        reason = f"{value} with {prefix} of {len(gold_ids)} ids"
        return self.scored(answer, scores[self.mode], None, reason)
