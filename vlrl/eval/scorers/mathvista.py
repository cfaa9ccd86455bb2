"""MathVista as its authors, lmms-eval and VLMEvalKit score it; `stage` names the replacement of their
language-model extractor.

Paper: arXiv:2310.02255. Rules taken from lupantech/MathVista (53d5258), lmms-eval (75571cfe) and VLMEvalKit
(e8e78f05).
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.readers import vlmevalkit_choice
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict

EXTRACTOR_REPLIES = ("response", "extraction", "extraction_ignore_empty", "rule_end_to_end")
Stage = Literal["response", "extraction", "extraction_ignore_empty", "rule_end_to_end"]
_QUOTED = re.compile(r'The answer is "(.*)"\.')
_IN_PARENTHESES = re.compile(r"\(([a-zA-Z])\)")
_LETTERS = string.ascii_uppercase


def choices_of(record: Record) -> list[str]:
    """The choices of a record; the hub stores None for an open question."""
    return list(record.get("choices") or [])


def closest(text: str, choices: list[str]) -> str:
    """The choice at the smallest edit distance; the first of several."""
    return min(choices, key=lambda choice: Levenshtein.distance(text, choice))


def shortcut(response: str, record: Record, quoted: bool) -> str | None:
    """The answer that the official extraction finds without a language model; None where it would ask one.

    A response that is itself a choice, an integer or a float is the answer; `quoted` adds the pattern: The
    answer is "X".
    """
    if record["question_type"] == "multi_choice" and response in choices_of(record):
        return response
    for answer_type, number in (("integer", int), ("float", float)):
        if record["answer_type"] == answer_type:
            try:
                return str(number(response))
            except ValueError:
                pass
    match = _QUOTED.search(response) if quoted else None
    return match.group(1) if match else None


def choice_named(extraction: str, choices: list[str]) -> str:
    """The choice of the first letter in parentheses, else of a bare letter, else the closest choice."""
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
    return str(
        round(float(extraction), precision)
    )  # the hub's precision is a float, so this raises TypeError for every row of the hub


@dataclass(frozen=True)
class _MathVista(Scorer):
    """MathVista without its language-model extractor, which `stage` replaces:

    response: the official shortcuts, else the response itself;  extraction: the response is the extracted
    string;
    extraction_ignore_empty: the same with the official flag for empty extractions;  rule_end_to_end: the
    shortcuts, else an empty extraction. A field `stage` of the record takes precedence.
    """

    stage: Stage = "response"

    def stage_for(self, record: Record) -> str:
        """The record's own stage, else the scorer's. Raises ValueError for an unknown one."""
        stage = record.get("stage") or self.stage
        if stage not in EXTRACTOR_REPLIES:
            raise ValueError(f"mathvista: no stage {stage!r}; known: {', '.join(EXTRACTOR_REPLIES)}")
        return stage

    def demonstrations(self, record: Record) -> list[str]:
        answers = [str(record["answer"])]
        if record["question_type"] == "multi_choice":
            choices = choices_of(record)
            letter = _LETTERS[choices.index(record["answer"])] if record["answer"] in choices else ""
            answers += [letter, f"({letter})"] if letter else []
        return answers

    def expected(self, record: Record) -> Any:
        """The gold answer as the record has it."""
        return record["answer"]


def _extracted(record: Record, response: str, stage: str, quoted: bool) -> tuple[str, str]:
    """(the extracted string, the rule that gave it)."""
    if stage.startswith("extraction"):
        return response, "given"
    if not response:
        return "", "empty"
    short = shortcut(response, record, quoted or stage == "rule_end_to_end")
    if short is not None:
        return short, "shortcut"
    return ("", "no extractor") if stage == "rule_end_to_end" else (response, "response")


def normalised(record: Record, extraction: str, to_float: Any, ignore_empty: bool = False) -> str | None:
    """The extraction in the form of the gold answer; None where it cannot be converted."""
    if record["question_type"] == "multi_choice":
        if ignore_empty and not extraction.strip():
            return None
        return choice_named(extraction, choices_of(record))
    convert = {"integer": _integer, "float": to_float, "list": _verbatim}.get(record["answer_type"])
    if convert is None:
        raise ValueError(
            f"mathvista: answer_type {record['answer_type']!r} of pid {record.get('pid')!r}; known: "
            "integer, float, list"
        )
    try:
        return convert(extraction, record.get("precision"))
    except (ValueError, TypeError, OverflowError):
        return None


@register("mathvista_official")
@dataclass(frozen=True)
class MathVistaOfficial(_MathVista):
    """MathVista, official: score = [normalise(extract(response)) == answer], as strings.

    Paper: arXiv:2310.02255; code lupantech/MathVista. Deviates: the language-model extractor is replaced (see
    `stage`). Edge: an empty extraction becomes the choice at the smallest edit distance, so that an empty
    response scores 16.8% on testmini; integers are truncated (14.9 is 14), floats are rounded in binary (1.15
    is 1.1), units and percent signs are not read.
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        stage = self.stage_for(row)
        extraction, rule = _extracted(row, response.text, stage, quoted=True)
        answer = normalised(row, extraction, _float_official, ignore_empty=stage == "extraction_ignore_empty")
        same = answer is not None and answer == gold
        return self.scored(float(same), answer, rule, {"extraction": extraction})


@register("mathvista_lmms_eval")
@dataclass(frozen=True)
class MathVistaLmmsEval(_MathVista):
    """MathVista in lmms-eval: score = [strip(normalise(extract(strip(response)))) == strip(answer)].

    Code: lmms-eval 75571cfe. Its faults are kept: a float precision (in every row of the hub) makes every
    float answer wrong. Edge: its shortcut for quoted answers is off by default; `rule_end_to_end` switches it
    on, as for the official scorer.
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        extraction, rule = _extracted(row, response.text.strip(), self.stage_for(row), quoted=False)
        answer = normalised(row, extraction, _float_lmms_eval)
        same = str(answer).strip() == str(gold).strip()
        return self.scored(float(same), answer, rule, {"extraction": extraction})


@register("mathvista_vlmevalkit")
@dataclass(frozen=True)
class MathVistaVlmevalkit(_MathVista):
    """MathVista in VLMEvalKit: score = [rule(response) == answer].

    The rule reads letters or choice texts for choices, int() and float() for numbers. Code: VLMEvalKit
    e8e78f05. Deviates: its judge, which is asked where the rules find nothing, is replaced by the response
    itself (by no answer in `rule_end_to_end`). Edge: no rounding, so "14.0" is no integer; a list is never
    correct; in `rule_end_to_end` the correct answers 0 and 0.0 count as not found.
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        read = self.read(row, response.text)
        if self.stage_for(row) == "rule_end_to_end" and not read:
            read = None
        return self.scored(float(read is not None and read == gold), read, "rules")

    def read(self, record: Record, response: str) -> Any:
        """The letter or number of a response; None where the rules find none."""
        if record["question_type"] == "multi_choice":
            return vlmevalkit_choice(response, dict(zip(_LETTERS, choices_of(record), strict=False)))
        number = {"integer": int, "float": float}.get(record["answer_type"])
        try:
            return number(response) if number else None
        except ValueError:
            return None

    def expected(self, record: Record) -> Any:
        """The gold answer in the form that `read` returns."""
        if record["question_type"] == "multi_choice":
            choices = choices_of(record)
            return record.get("answer_option") or (
                _LETTERS[choices.index(record["answer"])] if record["answer"] in choices else ""
            )
        number = {"integer": int, "float": float}.get(record["answer_type"])
        return number(record["answer"]) if number else str(record["answer"])
