"""Rewards that are the verdict of a verifier on the rollout: the same code as in evaluation and audits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.verdict import Verdict
from vlrl_rewards.verification import load, verify

VERDICT: Annotation[dict[str, Any]] = Annotation(
    "verdict", dict, doc="kind, reason, extracted answer and route of the verdict on a rollout"
)


def judged(rollout: Rollout, kind: str, options: Mapping[str, Any], binary: bool) -> float:
    """The score of a verdict (1 or 0 if `binary`). The verdict is recorded in the annotation VERDICT."""
    verdict: Verdict = verify(rollout.answer, rollout.text, kind, rollout.row.choices, **options)
    VERDICT.set(
        rollout,
        {"kind": kind, "reason": verdict.reason, "extracted": verdict.extracted, "route": verdict.route},
    )
    return float(verdict.correct) if binary else verdict.score


@register("verify")
@dataclass(frozen=True, kw_only=True)
class Verified(Reward):
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

    def __call__(self, rollout: Rollout) -> float:
        meta = rollout.row.meta
        kind, options = self.verifier, dict(self.options)
        if kind == "auto" and meta.get("kind"):
            kind, options = str(meta["kind"]), {**meta.get("options", {}), **options}
        return judged(rollout, kind, options, self.binary)


@register("math")
@dataclass(frozen=True, kw_only=True)
class Math(Reward):
    """Mathematical equality.

        r = 1[answer = gold]

    Paper: DeepSeek-R1 (accuracy reward), arXiv:2501.12948, sec. 2.2.2. Deviations: exact arithmetic first,
    then math-verify in worker processes. Edge: thinking is never read; several answers, a refusal, a hedge:
    0. An empty gold answer raises ValueError.
    """

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, "math", {}, True)


@register("numeric")
@dataclass(frozen=True, kw_only=True)
class Numeric(Reward):
    """Numeric equality within a tolerance.

        r = 1[|answer - gold| <= max(abs_tol, rel_tol |gold|)]

    Units are converted; "12%" is 0.12.
    Paper: vlrl original. Defaults are exact. Edge: no number, several answers, conflicting units: 0. A gold
    that is no number raises ValueError.
    """

    rel_tol: float = 0.0
    abs_tol: float = 0.0
    unit: str = ""

    def __call__(self, rollout: Rollout) -> float:
        if not any(char.isdigit() for char in str(rollout.answer)):
            raise ValueError(
                f"row {rollout.row.id!r}: the gold answer {rollout.answer!r} is not a number; use the "
                "reward 'math' or 'exact'"
            )
        return judged(
            rollout, "numeric", {"rel_tol": self.rel_tol, "abs_tol": self.abs_tol, "unit": self.unit}, True
        )


@register("mcq")
@dataclass(frozen=True, kw_only=True)
class Mcq(Reward):
    """Multiple choice.

        r = 1[the answer names exactly the gold option of `row.choices`, by letter or words]

    Paper: Med-RLVR, arXiv:2502.19655 (option match). Deviations: every written form is read; several options
    score 0. Edge: a gold answer that is none of the choices raises ValueError.
    """

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, "mcq", {}, True)


@register("yes_no")
@dataclass(frozen=True, kw_only=True)
class YesNo(Reward):
    """Yes or no (true or false).

        r = 1[answer = gold]

    Both, or neither: 0.
    Paper: vlrl original. Edge: "I do not know" is neither. A gold answer that is neither raises ValueError.
    """

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, "yes_no", {}, True)


@register("text")
@dataclass(frozen=True, kw_only=True)
class Text(Reward):
    """Equal words.

        r = 1[words(answer) = words(gold)]

    The gold may be a list of accepted texts. Case, punctuation and articles are ignored.
    Paper: SQuAD exact match, arXiv:1606.05250, sec. 6.1. Edge: empty, several answers, refusals: 0. An empty
    gold raises ValueError.
    """

    case_sensitive: bool = False

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, "text", {"case_sensitive": self.case_sensitive}, True)


@register("text_metric")
@dataclass(frozen=True, kw_only=True)
class TextMetric(Reward):
    """A text metric: token F1, ROUGE F1, BLEU, chrF2, ANLS, 1 - WER or 1 - CER.

        r = max over golds of metric(answer, gold), in [0, 1]

    Paper: MT-R1-Zero (BLEU as reward), arXiv:2504.10160; Video-R1 (ROUGE, WER), arXiv:2503.21776. Deviations:
    metrics as published, unscaled. Edge: empty answer, several answer blocks, refusals: 0. An empty gold
    raises ValueError.
    """

    metric: Literal["f1", "rouge1", "rouge2", "rougeL", "bleu", "chrf", "anls", "wer", "cer"] = "f1"
    correct_at: float = 0.5

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, self.metric, {"correct_at": self.correct_at}, False)


@register("items")
@dataclass(frozen=True, kw_only=True)
class Items(Reward):
    """Structured answers with partial credit.

        list:     F1 of items
        json:     F1 of leaves
        table:    F1 of cells
        ranking:  nDCG

    Paper: Reasoning-Table, arXiv:2506.01710 (order-free lists); nDCG: Burges et al. 2005. Edge: repeated
    items lower precision; no structure: 0.
    """

    form: Literal["list", "json", "table", "ranking"] = "list"

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, self.form, {}, False)


@register("instructions")
@dataclass(frozen=True, kw_only=True)
class Instructions(Reward):
    """Instruction following: verifiable instructions of IFEval.

        r = followed / instructions
        r = 1[all followed]   (with `all_or_nothing`)

    Paper: IFEval, arXiv:2311.07911; as a reward: VerIF, arXiv:2506.09942 (its rule part). Edge: an empty
    response follows none.
    """

    all_or_nothing: bool = False

    def __call__(self, rollout: Rollout) -> float:
        return judged(rollout, "instructions", {}, self.all_or_nothing)


@register("brier")
@dataclass(frozen=True, kw_only=True)
class Brier(Reward):
    """Brier score of a stated probability.

        r = -(p - y)^2

    p: the stated probability of the outcome y in {0, 1}; r = -1 without a probability.
    Paper: Outcome-based RL to predict the future, arXiv:2505.17989 (Brier reward). Edge: "70%" is 0.7; a
    number outside [0, 1] is no probability. `correct_at`: above -1/4, p is on the correct side of one half.
    """

    correct_at: float = -0.2499

    def __call__(self, rollout: Rollout) -> float:
        verdict = verify(rollout.answer, rollout.text, "brier")
        return verdict.score - 1.0 if verdict.route else -1.0
