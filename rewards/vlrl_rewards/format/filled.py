"""Rewards for filled blanks, and for lists of locations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import last_answer

_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d{1,30}|/[1-9]\d{0,29})?")


def same(said: str, gold: str) -> bool:
    """Whether two texts are equal without case, spaces and dollar signs, or are the same number."""
    said, gold = (re.sub(r"[\s$]+", "", text).casefold() for text in (said, gold))
    if said == gold:
        return bool(gold)
    return bool(_NUMBER.fullmatch(said) and _NUMBER.fullmatch(gold)) and Fraction(said) == Fraction(gold)


@register("filled")
@dataclass(frozen=True, kw_only=True)
class Filled(Reward):
    """Filled blanks, compared by position.

        r = correct blanks / max(blanks, parts of the answer)

    Semicolons or lines separate the parts.
    Paper: MR-RLVR, arXiv:2511.17473 (masked-then-fill rewards the restored content); no released code was
    found, so the measure is ours. Gold: a list of texts. A part is correct if it is equal without case,
    spaces and dollar signs, or the same number. Edge: no answer: 0. Raises ValueError if the gold answer is
    no list of texts.
    """

    def __call__(self, rollout: Rollout) -> float:
        gold = rollout.answer
        if not isinstance(gold, (list, tuple)) or not gold or not all(str(part).strip() for part in gold):
            raise ValueError(f"row {rollout.row.id!r}: the gold answer must be a list of texts, got {gold!r}")
        said = [part.strip() for part in re.split(r"[;\n]", last_answer(rollout.text)[:4000]) if part.strip()]
        return sum(same(a, str(b)) for a, b in zip(said, gold)) / max(len(said), len(gold))


@register("places")
@dataclass(frozen=True, kw_only=True)
class Places(Reward):
    """SoRFT's localisation reward: F-beta of named files, functions or lines.

        r = (1 + b^2) P R / (b^2 P + R)

    Lines or commas separate the locations; r = 0 if one is not in `row.meta[known]`.
    Paper: Ma et al. 2025 (SoRFT), arXiv:2502.20127: F-beta between the extracted and the true files,
    functions or lines; malformed answers and locations that do not exist score 0. No released code was found;
    `beta` is ours. Gold: a list of texts. Edge: no location named: 0; a repeated location counts once; case
    counts. `known` is the meta field with all existing locations ("": not checked).
    """

    beta: float = 1.0
    known: str = "known"

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta={self.beta} must be above 0; above 1 recall counts more than precision")

    def __call__(self, rollout: Rollout) -> float:
        gold = (
            {str(item).strip() for item in rollout.answer}
            if isinstance(rollout.answer, (list, tuple))
            else set()
        )
        if not gold or "" in gold:
            raise ValueError(
                f"row {rollout.row.id!r}: the gold answer must be a list of locations, got {rollout.answer!r}"
            )
        said = {part.strip("`-* \t") for part in re.split(r"[,\n]", last_answer(rollout.text)[:20000])} - {""}
        meta: Mapping[str, object] = rollout.row.meta
        exists = meta.get(self.known) if self.known else None
        if isinstance(exists, (list, tuple)) and not said <= {str(item) for item in exists}:
            return 0.0
        both = len(said & gold)
        if not both:
            return 0.0
        precision, recall = both / len(said), both / len(gold)
        return (1 + self.beta**2) * precision * recall / (self.beta**2 * precision + recall)
