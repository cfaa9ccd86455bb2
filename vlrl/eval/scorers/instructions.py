"""IFEval: instructions that a program can check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.eval.scorer import Record, ScoredResponse, Scorer
from vlrl.eval.scorers.verifier import training_verifier
from vlrl.registry import register


def constraints(record: Record) -> list[dict[str, Any]]:
    """The row's instructions with their arguments (those that are null are not theirs)."""
    out = []
    for name, arguments in zip(record["instruction_id_list"], record["kwargs"], strict=True):
        given: Mapping[str, Any] = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
        out.append({"id": name, **{key: value for key, value in given.items() if value is not None}})
    return out


@register("ifeval")
@dataclass(frozen=True)
class IFEval(Scorer):
    """score = share of the row's instructions that the response keeps; `strict` false also tries it without first or last line and without stars.

    Paper: Zhou et al., arXiv:2311.07911, sec. 2.2. The checks are the training verifier's. Edge: an empty response keeps none.
    """

    strict: bool = True

    def __call__(self, record: Record, response: str) -> ScoredResponse:
        verdict = training_verifier()(constraints(record), response, kind="ifeval", strict=self.strict)
        return ScoredResponse(float(verdict.score), verdict.extracted, verdict.reason)

    def gold(self, record: Record) -> list[str]:
        return [str(record["example"])] if record.get("example") else []
