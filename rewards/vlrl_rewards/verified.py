"""Rewards that score by a kind of `verify`: the same code as in evaluation and audits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.verification import load, score_by


@dataclass(frozen=True, kw_only=True)
class ByKind(Graded):
    """Base class of the rewards that score by a kind of `verify`."""

    answer_kind: ClassVar[str] = ""

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        """The kind by which a row is scored, and its options."""
        return self.answer_kind, {}

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        kind, options = self.kind_of(row)
        return score_by(kind, response, gold, row, options)


@register("verify")
@dataclass(frozen=True, kw_only=True)
class Verified(ByKind):
    """The verdict of a verifier.

        r = verify(gold, response, verifier).score, in [0, 1]
        r = 1[verdict correct]   (with `binary`)

    Paper: vlrl original (one verifier for training and evaluation). verifier "auto": the row's `meta["kind"]`
    with `meta["options"]`, else inferred from its answer and choices. Edge: a broken gold answer raises
    ValueError.
    """

    verifier: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    binary: bool = False

    def __post_init__(self) -> None:
        load(self.verifier)

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        if self.verifier == "auto" and row.meta.get("kind"):
            return str(row.meta["kind"]), {**row.meta.get("options", {}), **self.options}
        return self.verifier, self.options

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        found = super().grade(response, gold, row)
        return replace(found, score=float(found.correct)) if self.binary else found


@register("math")
@dataclass(frozen=True, kw_only=True)
class Math(ByKind):
    """Mathematical equality.

        r = 1[answer = gold]

    Paper: DeepSeek-R1 (accuracy reward), arXiv:2501.12948, sec. 2.2.2. Deviations: exact arithmetic first,
    then math-verify in worker processes. Edge: thinking is never read; several answers, a refusal, a hedge:
    0. An empty gold answer raises ValueError.
    """

    answer_kind: ClassVar[str] = "math"


@register("numeric")
@dataclass(frozen=True, kw_only=True)
class Numeric(ByKind):
    """Numeric equality within a tolerance.

        r = 1[|answer - gold| <= max(abs_tol, rel_tol |gold|)]

    Units are converted; "12%" is 0.12.
    Paper: vlrl original. Defaults are exact. Edge: no number, several answers, conflicting units: 0. A gold
    that is no number raises ValueError.
    """

    rel_tol: float = 0.0
    abs_tol: float = 0.0
    unit: str = ""

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        return "numeric", {"rel_tol": self.rel_tol, "abs_tol": self.abs_tol, "unit": self.unit}

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if not any(char.isdigit() for char in str(gold)):
            raise GoldError(
                f"row {row.id!r}: the gold answer {gold!r} is not a number; use the reward 'math' or 'exact'"
            )
        return super().grade(response, gold, row)


@register("mcq")
@dataclass(frozen=True, kw_only=True)
class Mcq(ByKind):
    """Multiple choice.

        r = 1[the answer names exactly the gold option of `row.choices`, by letter or words]

    Paper: Med-RLVR, arXiv:2502.19655 (option match). Deviations: every written form is read; several options
    score 0. Edge: a gold answer that is none of the choices raises ValueError.
    """

    answer_kind: ClassVar[str] = "mcq"


@register("yes_no")
@dataclass(frozen=True, kw_only=True)
class YesNo(ByKind):
    """Yes or no (true or false).

        r = 1[answer = gold]

    Both, or neither: 0.
    Paper: vlrl original. Edge: "I do not know" is neither. A gold answer that is neither raises ValueError.
    """

    answer_kind: ClassVar[str] = "yes_no"


@register("text")
@dataclass(frozen=True, kw_only=True)
class SameWords(ByKind):
    """Equal words.

        r = 1[words(answer) = words(gold)]

    The gold may be a list of accepted texts. Case, punctuation and articles are ignored.
    Paper: SQuAD exact match, arXiv:1606.05250, sec. 6.1. Edge: empty, several answers, refusals: 0. An empty
    gold raises ValueError.
    """

    case_sensitive: bool = False

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        return "text", {"case_sensitive": self.case_sensitive}


@register("text_metric")
@dataclass(frozen=True, kw_only=True)
class TextMetric(ByKind):
    """A text metric: token F1, F1 of word sets, ROUGE F1, BLEU, METEOR, chrF2, ANLS, 1 - WER or 1 - CER.

        r = max over golds of metric(answer, gold), in [0, 1]

    Paper: MT-R1-Zero (BLEU as reward), arXiv:2504.10160; Video-R1 (ROUGE, WER), arXiv:2503.21776. Deviations:
    metrics as published, unscaled. Edge: empty answer, several answer blocks, refusals: 0. An empty gold
    raises ValueError.
    """

    metric: Literal[
        "f1", "set_f1", "rouge1", "rouge2", "rougeL", "bleu", "meteor", "chrf", "anls", "wer", "cer"
    ] = "f1"
    correct_at: float = 0.5

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        return self.metric, {"correct_at": self.correct_at}


@register("items")
@dataclass(frozen=True, kw_only=True)
class Items(ByKind):
    """Structured answers with partial credit.

        list:     F1 of items
        json:     F1 of leaves
        table:    F1 of cells
        ranking:  nDCG

    Paper: Reasoning-Table, arXiv:2506.01710 (order-free lists); nDCG: Burges et al. 2005. Edge: repeated
    items lower precision; no structure: 0.
    """

    form: Literal["list", "json", "table", "ranking"] = "list"

    def kind_of(self, row: Row) -> tuple[str, Mapping[str, Any]]:
        return self.form, {}


@register("instructions")
@dataclass(frozen=True, kw_only=True)
class Instructions(ByKind):
    """Instruction following: verifiable instructions of IFEval.

        r = followed / instructions
        r = 1[all followed]   (with `all_or_nothing`)

    Paper: IFEval, arXiv:2311.07911; as a reward: VerIF, arXiv:2506.09942 (its rule part). Edge: an empty
    response follows none.
    """

    answer_kind: ClassVar[str] = "instructions"
    all_or_nothing: bool = False

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        found = super().grade(response, gold, row)
        return replace(found, score=float(found.correct)) if self.all_or_nothing else found


@register("brier")
@dataclass(frozen=True, kw_only=True)
class Brier(ByKind):
    """Brier score of a stated probability.

        r = -(p - y)^2

    p: the stated probability of the outcome y in {0, 1}; r = -1 without a probability.
    Paper: Outcome-based RL to predict the future, arXiv:2505.17989 (Brier reward). Edge: "70%" is 0.7; a
    number outside [0, 1] is no probability. `correct_at`: above -1/4, p is on the correct side of one half.
    """

    answer_kind: ClassVar[str] = "brier"
    correct_at: float = -0.2499

    def lowest(self) -> float:
        return -1.0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        found = super().grade(response, gold, row)
        return replace(found, score=self.lowest() if found.unread else found.score - 1.0)
