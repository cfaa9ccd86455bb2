"""MathVista as its authors, lmms-eval and VLMEvalKit score it, with what stands in for their language-model extractor named.

Paper: arXiv:2310.02255. Rules read in lupantech/MathVista (53d5258), lmms-eval (75571cfe) and VLMEvalKit (e8e78f05).
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from vlrl.eval.scorer import Fields, Mark, Scorer
from vlrl.eval.scorers.letters import vlmevalkit_choice
from vlrl.registry import register

EXTRACTOR_REPLIES = ("response", "extraction", "extraction_ignore_empty", "rule_end_to_end")
Stage = Literal["response", "extraction", "extraction_ignore_empty", "rule_end_to_end"]
_QUOTED = re.compile(r'The answer is "(.*)"\.')
_IN_PARENTHESES = re.compile(r"\(([a-zA-Z])\)")
_LETTERS = string.ascii_uppercase


def choices_of(row: Fields) -> list[str]:
    """The choices of a row; the hub stores None where there are none."""
    return list(row.get("choices") or [])


def closest(text: str, choices: list[str]) -> str:
    """The choice at the smallest edit distance; the first of equals."""
    return min(choices, key=lambda choice: Levenshtein.distance(text, choice))


def shortcut(response: str, row: Fields, quoted: bool) -> str | None:
    """What the official extraction reads without a language model; None where it would ask one.

    A response that is a choice, an integer or a float stands for itself; `quoted` adds the pattern: The answer is "X".
    """
    if row["question_type"] == "multi_choice" and response in choices_of(row):
        return response
    for answer_type, number in (("integer", int), ("float", float)):
        if row["answer_type"] == answer_type:
            try:
                return str(number(response))
            except ValueError:
                pass
    match = _QUOTED.search(response) if quoted else None
    return match.group(1) if match else None


def chosen(extraction: str, choices: list[str]) -> str:
    """A letter in parentheses (the first), else a bare letter, else the closest choice."""
    text = extraction.strip()
    letters = _IN_PARENTHESES.findall(text)
    text = letters[0].upper() if letters else text
    allowed = [chr(ord("A") + i) for i in range(len(choices))]
    return choices[allowed.index(text)] if text in allowed else closest(text, choices)


def _integer(extraction: str, precision: Any) -> str:
    return str(int(float(extraction)))


def _verbatim(extraction: str, precision: Any) -> str:
    return str(extraction)


def _float_official(extraction: str, precision: Any) -> str:
    return str(round(float(extraction), int(precision)))


def _float_lmms_eval(extraction: str, precision: Any) -> str:
    return str(round(float(extraction), precision))  # the hub's precision is a float, so this raises for every row of the hub


@dataclass(frozen=True)
class _MathVista(Scorer):
    """`stage` says what stands in for the language model that extracts the answer:

    response: the official shortcuts, else the response itself;  extraction: the response is the extracted string;
    extraction_ignore_empty: the same with the official flag for empty extractions;  rule_end_to_end: the shortcuts, else nothing.
    A row may carry its own `stage`, which then counts.
    """

    stage: Stage = "response"

    def stage_for(self, row: Fields) -> str:
        stage = row.get("stage") or self.stage
        if stage not in EXTRACTOR_REPLIES:
            raise ValueError(f"mathvista: no stage {stage!r}; known: {', '.join(EXTRACTOR_REPLIES)}")
        return stage

    def gold(self, row: Fields) -> list[str]:
        answers = [str(row["answer"])]
        if row["question_type"] == "multi_choice":
            choices = choices_of(row)
            letter = _LETTERS[choices.index(row["answer"])] if row["answer"] in choices else ""
            answers += [letter, f"({letter})"] if letter else []
        return answers

    @abstractmethod
    def __call__(self, row: Fields, response: str) -> Mark: ...


def _extracted(row: Fields, response: str, stage: str, quoted: bool) -> tuple[str, str]:
    """(the extracted string, the rule that gave it)."""
    if stage.startswith("extraction"):
        return response, "given"
    if not response:
        return "", "empty"
    short = shortcut(response, row, quoted or stage == "rule_end_to_end")
    if short is not None:
        return short, "shortcut"
    return ("", "no extractor") if stage == "rule_end_to_end" else (response, "response")


def normalised(row: Fields, extraction: str, to_float: Any, ignore_empty: bool = False) -> str | None:
    """The extraction in the form of the gold answer; None where it has no such form."""
    if row["question_type"] == "multi_choice":
        if ignore_empty and not extraction.strip():
            return None
        return chosen(extraction, choices_of(row))
    convert = {"integer": _integer, "float": to_float, "list": _verbatim}.get(row["answer_type"])
    if convert is None:
        raise ValueError(f"mathvista: answer_type {row['answer_type']!r} of pid {row.get('pid')!r}; known: integer, float, list")
    try:
        return convert(extraction, row.get("precision"))
    except (ValueError, TypeError, OverflowError):
        return None


@register("mathvista_official")
@dataclass(frozen=True)
class MathVistaOfficial(_MathVista):
    """score = [normalise(extract(response)) == answer], as strings.

    Paper: arXiv:2310.02255; code lupantech/MathVista. Deviates: the language-model extractor is replaced (see `stage`).
    Edge: an empty extraction becomes the choice at the smallest edit distance, so that silence scores 16.8% on testmini; integers are
    truncated (14.9 is 14), floats rounded in binary (1.15 is 1.1), units and percent signs are not read.
    """

    def __call__(self, row: Fields, response: str) -> Mark:
        stage = self.stage_for(row)
        extraction, rule = _extracted(row, response, stage, quoted=True)
        answer = normalised(row, extraction, _float_official, ignore_empty=stage == "extraction_ignore_empty")
        return Mark(float(answer is not None and answer == row["answer"]), answer, rule, {"extraction": extraction})


@register("mathvista_lmms_eval")
@dataclass(frozen=True)
class MathVistaLmmsEval(_MathVista):
    """score = [strip(normalise(extract(strip(response)))) == strip(answer)].

    Code: lmms-eval 75571cfe. Its faults are kept: a float precision (all of the hub) makes every float answer wrong.
    Edge: its shortcut for quoted answers is off as shipped; `rule_end_to_end` switches it on, as for the official scorer.
    """

    def __call__(self, row: Fields, response: str) -> Mark:
        extraction, rule = _extracted(row, response.strip(), self.stage_for(row), quoted=False)
        answer = normalised(row, extraction, _float_lmms_eval)
        return Mark(float(str(answer).strip() == str(row["answer"]).strip()), answer, rule, {"extraction": extraction})


@register("mathvista_vlmevalkit")
@dataclass(frozen=True)
class MathVistaVlmevalkit(_MathVista):
    """score = [rule(response) == answer]: letters or choice texts for choices, int() and float() for numbers, never for lists.

    Code: VLMEvalKit e8e78f05. Deviates: its judge, asked where the rules find nothing, echoes the response (nothing in `rule_end_to_end`).
    Edge: no rounding, "14.0" is no integer; a list is never right; with a silent judge the right answers 0 and 0.0 count as not found.
    """

    def __call__(self, row: Fields, response: str) -> Mark:
        read = self.read(row, response)
        if self.stage_for(row) == "rule_end_to_end" and not read:
            read = None
        return Mark(float(read is not None and read == self.wanted(row)), read, "rules")

    def read(self, row: Fields, response: str) -> Any:
        if row["question_type"] == "multi_choice":
            return vlmevalkit_choice(response, dict(zip(_LETTERS, choices_of(row), strict=False)))
        number = {"integer": int, "float": float}.get(row["answer_type"])
        try:
            return number(response) if number else None
        except ValueError:
            return None

    def wanted(self, row: Fields) -> Any:
        if row["question_type"] == "multi_choice":
            choices = choices_of(row)
            return row.get("answer_option") or (_LETTERS[choices.index(row["answer"])] if row["answer"] in choices else "")
        number = {"integer": int, "float": float}.get(row["answer_type"])
        return number(row["answer"]) if number else str(row["answer"])
