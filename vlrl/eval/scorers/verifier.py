"""Scorers that call the training verifier: the profile `vlrl` of every suite, and IFEval."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Record, Scorer
from vlrl.plugins.registry import ConfigError, home_of, register
from vlrl.plugins.scoring import Response, Verdict
from vlrl.plugins.stages import Reward


@lru_cache(maxsize=1)
def training_verifier() -> Any:
    """The function `verify` of the rewards package. Raises ConfigError where the package has none."""
    home = home_of(Reward)
    if not hasattr(home, "verify"):
        raise ConfigError(
            f"profile vlrl: {Reward.home} has no `verify`; install the package of the rewards that vlrl "
            "trains with"
        )
    return home.verify


@register("verifier")
@dataclass(frozen=True)
class Verifier(Scorer):
    """The training verifier: score = verify(gold, response, kind, choices).score.

    Paper: vlrl original. `kind_of` (an expression) gives the kind per record, `options_of` its options; with
    `spaces`, coordinates are converted as in training, where the run recorded their units. Edge: an empty
    response, a refusal, or an answer that names every option scores 0.
    """

    answer_kind: str = "auto"
    kind_of: str = ""
    answer: str = "row.answer"
    choices: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    options_of: str = ""
    spaces: bool = False

    def expected(self, record: Record) -> Any:
        """The gold answer, as the kind reads it."""
        return evaluate(self.answer, record)

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        kind = str(evaluate(self.kind_of, row)) if self.kind_of else self.answer_kind
        choices = evaluate(self.choices, row) if self.choices else None
        options = {**self.options, **((evaluate(self.options_of, row) or {}) if self.options_of else {})}
        if self.spaces and response.spaces:
            options["spaces"] = tuple(response.spaces)
        choices = list(choices) if choices else None
        return training_verifier()(gold, response.text, kind=kind, choices=choices, **options)

    def demonstrations(self, record: Record) -> list[str]:
        answer = self.expected(record)
        accepted = (
            isinstance(answer, (list, tuple))
            and bool(answer)
            and all(isinstance(entry, str) for entry in answer)
        )
        answer = (
            answer[0] if accepted else answer
        )  # of several accepted answers one is enough; a list of numbers is one answer
        return [f"<answer>{answer}</answer>"]


def constraints(record: Record) -> list[dict[str, Any]]:
    """The record's instructions with their arguments; the hub stores null for arguments that an instruction
    does not have."""
    out = []
    for name, arguments in zip(record["instruction_id_list"], record["kwargs"], strict=True):
        given: Mapping[str, Any] = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
        out.append({"id": name, **{key: value for key, value in given.items() if value is not None}})
    return out


@register("ifeval")
@dataclass(frozen=True)
class IFEval(Scorer):
    """IFEval: score = share of the record's instructions that the response follows.

    With `strict` false, the response is also tried without its first or last line and without asterisks.
    Paper: Zhou et al., arXiv:2311.07911, sec. 2.2. The checks are the training verifier's. Edge: an empty
    response follows none.
    """

    strict: bool = True

    def expected(self, record: Record) -> list[dict[str, Any]]:
        """The record's instructions."""
        return constraints(record)

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        return training_verifier()(gold, response.text, kind="ifeval", strict=self.strict)

    def demonstrations(self, record: Record) -> list[str]:
        return [str(record["example"])] if record.get("example") else []
