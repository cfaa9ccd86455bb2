"""The strict profile: the verifier that training rewards with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Record, ScoredResponse, Scorer
from vlrl.registry import ConfigError, home_of, register
from vlrl.stages import Reward
from vlrl.types import CoordinateSpace


@lru_cache(maxsize=1)
def training_verifier() -> Any:
    """`verify` of the package that is home to the rewards."""
    home = home_of(Reward)
    if not hasattr(home, "verify"):
        raise ConfigError(f"profile vlrl: {Reward.home} has no `verify`; install the package of the rewards that vlrl trains with")
    return home.verify


@register("verifier")
@dataclass(frozen=True)
class Verifier(Scorer):
    """score = verify(gold, response, kind, choices).score: the same code as the training reward.

    Paper: vlrl original. `kind_of` (an expression) may choose the kind by row, `options_of` its options; with `spaces`, coordinates are
    converted as in training, where the run recorded what they mean.
    Edge: an empty response, a refusal, or an answer that names every option scores 0.
    """

    answer_kind: str = "auto"
    kind_of: str = ""
    answer: str = "row.answer"
    choices: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    options_of: str = ""
    spaces: bool = False

    def __call__(self, record: Record, response: str) -> ScoredResponse:
        kind = str(evaluate(self.kind_of, record)) if self.kind_of else self.answer_kind
        choices = evaluate(self.choices, record) if self.choices else None
        gold = evaluate(self.answer, record)
        options = {**self.options, **((evaluate(self.options_of, record) or {}) if self.options_of else {})}
        if self.spaces and record.get("_spaces"):
            options["spaces"] = tuple(CoordinateSpace((s[0], s[1]), (s[2], s[3]), s[4]) for s in record["_spaces"])
        verdict = training_verifier()(gold, response, kind=kind, choices=list(choices) if choices else None, **options)
        return ScoredResponse(float(verdict.score), verdict.extracted, verdict.route or verdict.reason, {"span": verdict.span, "reason": verdict.reason})

    def gold(self, record: Record) -> list[str]:
        answer = evaluate(self.answer, record)
        accepted = isinstance(answer, (list, tuple)) and bool(answer) and all(isinstance(entry, str) for entry in answer)
        answer = answer[0] if accepted else answer  # any of several accepted answers will do; a list of numbers is one answer
        return [f"<answer>{answer}</answer>"]
