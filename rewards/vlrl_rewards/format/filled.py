"""Rewards for filled blanks, and for lists of locations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import committed_answer

_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d{1,30}|/[1-9]\d{0,29})?")


def same(said: str, gold: str) -> bool:
    """Whether two texts are equal without case, spaces and dollar signs, or are the same number."""
    said, gold = (re.sub(r"[\s$]+", "", text).casefold() for text in (said, gold))
    if said == gold:
        return bool(gold)
    return bool(_NUMBER.fullmatch(said) and _NUMBER.fullmatch(gold)) and Fraction(said) == Fraction(gold)


@register("filled")
@dataclass(frozen=True, kw_only=True)
class Filled(Graded):
    """Filled blanks, compared by position.

        r = correct blanks / max(blanks, parts of the answer)

    Semicolons or lines separate the parts.
    Paper: MR-RLVR, arXiv:2511.17473 (masked-then-fill rewards the restored content); no released code was
    found, so the measure is ours. Gold: a list of texts. A part is correct if it is equal without case,
    spaces and dollar signs, or the same number. Edge: no answer: 0. Raises ValueError if the gold answer is
    no list of texts.
    """

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if not isinstance(gold, (list, tuple)) or not gold or not all(str(part).strip() for part in gold):
            raise GoldError(f"row {row.id!r}: the gold answer must be a list of texts, got {gold!r}")
        answer = committed_answer(response)
        said = [part.strip() for part in re.split(r"[;\n]", answer.text[:4000]) if part.strip()]
        hits = sum(same(a, str(b)) for a, b in zip(said, gold))
        return self.scored(answer, hits / max(len(said), len(gold)), None, f"{hits} of {len(gold)} blanks")


@register("places")
@dataclass(frozen=True, kw_only=True)
class Places(Graded):
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

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        wanted = {str(item).strip() for item in gold} if isinstance(gold, (list, tuple)) else set()
        if not wanted or "" in wanted:
            raise GoldError(f"row {row.id!r}: the gold answer must be a list of locations, got {gold!r}")
        answer = committed_answer(response)
        said = {part.strip("`-* \t") for part in re.split(r"[,\n]", answer.text[:20000])} - {""}
        exists = row.meta.get(self.known) if self.known else None
        if isinstance(exists, (list, tuple)) and not said <= {str(item) for item in exists}:
            return self.wrong(answer, "names a location that does not exist")
        both = len(said & wanted)
        if not both:
            return self.wrong(answer, "names none of the locations")
        precision, recall = both / len(said), both / len(wanted)
        score = (1 + self.beta**2) * precision * recall / (self.beta**2 * precision + recall)
        return self.scored(answer, score, None, f"{both} of {len(wanted)} with {len(said)} locations")
