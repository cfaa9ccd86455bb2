"""MMMU and VideoMMMU: letters for multiple choice, strings and numbers for open questions."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.choice import Choice
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict

_NUMBERS = (
    r"-?\b\d{1,3}(?:,\d{3})+\b",
    r"-?\d+(?:\.\d+)?[eE][+-]?\d+",
    r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])",
)
INDICATORS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
MORE_INDICATORS = (
    *INDICATORS, "are ", "in total ", "total ", "identify ", "recognize ", "calculated as ", "counted as ",
    "measured as ", "observed as ",
    "concluded as ", "found to be ", "equals ", "determined to be ", "number of ", "value is ", "adds up to ",
    "have ", "has ",
)  # fmt: skip


def normal(text: str) -> list[Any]:
    """A number rounded to two decimals, or lower-case text; a single character is padded so that it matches
    only at the edge of a word."""
    plain = text.strip()
    try:
        return [round(float(plain.replace(",", "")), 2)]
    except ValueError:
        lowered = plain.lower()
        return [f" {lowered}", f"{lowered} "] if len(lowered) == 1 else [lowered]


def key_parts(response: str, indicators: Sequence[str]) -> list[str]:
    """The shortest tail after an indicator in each sentence; "=" is an indicator in the last one. The whole
    response if there is none."""
    text = response.strip().strip(".").lower()
    sentences = re.split(r"\.\s(?=[A-Z])|\n", text)
    found = []
    for number, sentence in enumerate(sentences):
        used = (*indicators, "=") if number == len(sentences) - 1 else indicators
        shortest = ""
        for tail in (sentence.split(indicator)[-1].strip() for indicator in used if indicator in sentence):
            if not shortest or len(tail) < len(
                shortest
            ):  # as in the original: an empty tail replaces a longer one and is replaced by the next
                shortest = tail
        if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'"):
            found.append(shortest)
    return found or [text]


def open_answers(response: str, indicators: Sequence[str] = INDICATORS) -> list[Any]:
    """Every candidate answer, string or number, in a response to an open question."""
    parts = key_parts(response, indicators)
    texts = parts + [number for part in parts for pattern in _NUMBERS for number in re.findall(pattern, part)]
    out: list[Any] = []
    for text in texts:
        out += [value for value in normal(text) if value not in out]
    return out


def golds(answer: Any) -> list[str]:
    """The accepted answers of an open question: a list, the text of a list, or one string."""
    if isinstance(answer, str) and answer.startswith("[") and answer.endswith("]"):
        with contextlib.suppress(ValueError, SyntaxError):
            answer = ast.literal_eval(answer)
    return [str(entry) for entry in answer] if isinstance(answer, (list, tuple)) else [str(answer)]


@register("mmmu")
@dataclass(frozen=True)
class MMMU(Scorer):
    """MMMU: choices: [letter == gold]; open: 1 if a candidate number equals a gold one (two decimals) or a
    gold string occurs in a candidate text.

    Paper: Yue et al., arXiv:2311.16502; code MMMU-Benchmark/MMMU (eval_utils). `reader` "mmmu" is the
    authors', "mmmu_wide" lmms-eval's. `more_indicators` adds those of VideoMMMU (arXiv:2501.13826).
    `broken_open` keeps the fault of lmms-eval from 2025-06-23 to 2026-08-24: open answers always score 0.
    Deviates: where the authors draw a random letter, no answer is extracted. Edge: an empty response scores
    0.
    """

    reader: str = "mmmu"
    options: str = "row.options"
    more_indicators: bool = False
    broken_open: bool = False

    def expected(self, record: Record) -> Any:
        """The gold answer as the record has it."""
        return record["answer"]

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        if row["question_type"] == "multiple-choice":
            choice = self._choice()
            return choice.grade(response, choice.expected(row), row)
        indicators = MORE_INDICATORS if self.more_indicators else INDICATORS
        candidates = open_answers(response.text, indicators) if response.text.strip() else []
        expected = [value for right in golds(gold) for value in normal(right)]
        correct = any(
            any(isinstance(e, str) and e in c for e in expected) if isinstance(c, str) else c in expected
            for c in candidates
        )
        read = candidates[0] if candidates else None
        return self.scored(float(correct and not self.broken_open), read, "open", {"candidates": candidates})

    def _choice(self) -> Choice:
        return Choice(reader=self.reader, answer="row.answer", choices=self.options)

    def demonstrations(self, record: Record) -> list[str]:
        return (
            [str(record["answer"])]
            if record["question_type"] == "multiple-choice"
            else golds(record["answer"])[:1]
        )
