"""VSI-Bench as its authors, lmms-eval and VLMEvalKit score it.

Paper: arXiv:2412.14171. Rules taken from vision-x-nyu/thinking-in-space (c26ba54), lmms-eval (75571cfe) and
VLMEvalKit (e8e78f05).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.readers import easi_letter
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict

CHOICE_TYPES = frozenset(
    {
        "object_rel_direction_easy",
        "object_rel_direction_medium",
        "object_rel_direction_hard",
        "object_rel_distance",
        "route_planning",
        "obj_appearance_order",
    }
)
NUMBER_TYPES = frozenset(
    {"object_abs_distance", "object_counting", "object_size_estimation", "room_size_estimation"}
)
# The authors' number of thresholds is int((.95 - .5) / .05 + 2): in floats the quotient is just below 9,
# which gives ten values .50, .55, ..., .95.
_LARGEST_ERRORS = 1 - np.linspace(0.5, 0.95, int((0.95 - 0.5) / 0.05 + 2))


def is_choice(record: Record) -> bool:
    """Whether the question is multiple choice. Raises ValueError for an unknown question type."""
    kind = record["question_type"]
    if kind not in CHOICE_TYPES and kind not in NUMBER_TYPES:
        raise ValueError(
            f"vsi_bench: question_type {kind!r} of id {record.get('id')!r}; known: "
            f"{', '.join(sorted(CHOICE_TYPES | NUMBER_TYPES))}"
        )
    return kind in CHOICE_TYPES


def mean_relative_accuracy(predicted: float | None, gold: float, guard: bool = False) -> float:
    """Mean relative accuracy: mean over t in .50, .55, ..., .95 of [ |predicted - gold| / gold <= 1 - t ], in
    float64.

    Paper: arXiv:2412.14171, eq. 1, which prints < where the code has <=. `guard` divides by |gold|, and by 1
    for gold 0. Edge: None gives 0; gold 0 without `guard` gives 0 (the authors' code raises an error there).
    """
    if predicted is None or (gold == 0 and not guard):
        return 0.0
    if guard:
        error = abs(predicted - gold) if gold == 0 else abs((predicted - gold) / gold)
    else:
        error = abs(predicted - gold) / gold
    return float((error <= _LARGEST_ERRORS).mean())


def first_token(response: str) -> str:
    """The text up to the first space, without trailing full stops and white space. A response that begins
    with a space gives ""."""
    return response.split(" ")[0].rstrip(".").strip()


def to_float(text: str) -> float | None:
    """float(text), or None."""
    try:
        return float(text)
    except ValueError:
        return None


_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]  # noqa: SIM905
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
WORDS = (
    {word: i for i, word in enumerate(_ONES)}
    | {word: 20 + 10 * i for i, word in enumerate(_TENS)}
    | {"hundred": 100, "thousand": 1000}
)


def spelled(words: list[str]) -> float:
    """ "three hundred twenty one" -> 321: hundred multiplies the number before it, thousand multiplies and
    ends a part of the sum."""
    total = part = 0
    for word in words:
        value = WORDS[word]
        if value == 100:
            part = max(part, 1) * 100
        elif value == 1000:
            total, part = total + max(part, 1) * 1000, 0
        else:
            part += value
    return float(total + part)


def first_number(response: str) -> float | None:
    """The first number of a response, in digits or in words (lmms-eval since eab6655a)."""
    text = response.strip().lower()
    digits = _DIGITS.search(text)
    start, run = None, []
    for match in re.finditer(r"[a-z]+", text):
        word = match.group()
        if word in WORDS:
            start = match.start() if start is None else start
            run.append(word)
        elif start is not None and word != "and":
            break
    if digits and (start is None or digits.start() < start):
        return float(digits.group())
    return spelled(run) if run else None


_INVISIBLE = re.compile("[\u200b\u200c\u200d\ufeff]")
_NUMBER = r"[-+]?(?:\d*\.\d+|\d+)(?:[eE][-+]?\d+)?"
_TAGGED = re.compile(rf"<\s*answer\b[^>]*>\s*({_NUMBER})(?:[^\d<][^<]*)?<\s*/\s*answer\s*>", re.IGNORECASE)
_TO_TWENTY = [*_ONES, "twenty"]
_SPELLED = re.compile(rf"\b({'|'.join(_TO_TWENTY)})\b", re.IGNORECASE)


def after_thinking(text: str) -> str:
    """The text after the last </think>, else after the last <think>, else all of it."""
    for tag in (r"</\s*think\s*>", r"<\s*think\s*>"):
        ends = [match.end() for match in re.finditer(tag, text, re.IGNORECASE)]
        if ends:
            return text[ends[-1] :].strip()
    return text


def last_number(response: str) -> float | None:
    """The number at the start of <answer>...</answer>, else the last number after the thinking, else the last
    of the response (VLMEvalKit).

    Number words up to twenty become digits ("twenty-one" reads 20 and -1). A response in brackets is parsed
    as a list, whose first entry counts; brackets without a list give None.
    """
    text = response
    if response.strip().startswith("[") and response.strip().endswith("]"):
        try:
            entries = ast.literal_eval(response)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        text = str(entries[0]) if isinstance(entries, list) and entries else response
    text = _INVISIBLE.sub("", text.strip())
    text = _SPELLED.sub(lambda match: str(_TO_TWENTY.index(match.group().lower())), text)
    tagged = _TAGGED.search(text)
    if tagged:
        return float(tagged.group(1))
    numbers = re.findall(_NUMBER, after_thinking(text)) or re.findall(_NUMBER, text)
    return float(numbers[-1]) if numbers else None


@dataclass(frozen=True)
class _Vsi(Scorer):
    """A scorer of VSI-Bench, whose gold answer is the field `ground_truth`."""

    def expected(self, record: Record) -> str:
        """The gold answer: a letter or a number."""
        return str(record["ground_truth"])

    def demonstrations(self, record: Record) -> list[str]:
        return [self.expected(record)]


@register("vsi_official")
@dataclass(frozen=True)
class VsiOfficial(_Vsi):
    """VSI-Bench, official: choices: [first token == gold], ignoring case; numbers: mean relative accuracy of
    the first token.

    Paper: arXiv:2412.14171; code vision-x-nyu/thinking-in-space.
    Edge: a leading space, parentheses, commas, or units without a space before them make the token
    unreadable: 0.
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        token = first_token(response.text)
        if is_choice(row):
            return self.scored(float(token.lower() == gold.lower()), token or None, "first token")
        number = to_float(token)
        return self.scored(mean_relative_accuracy(number, float(gold)), number, "first token")


@register("vsi_lmms_eval")
@dataclass(frozen=True)
class VsiLmmsEval(_Vsi):
    """VSI-Bench in lmms-eval: choices as the authors; numbers: mean relative accuracy of the first number or
    number word of the response.

    Code: lmms-eval 75571cfe (the rule for numbers since eab6655a, 2026-07-14; before that, as the authors).
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        if is_choice(row):
            token = first_token(response.text)
            return self.scored(float(token.lower() == gold.lower()), token or None, "first token")
        number = first_number(response.text)
        return self.scored(mean_relative_accuracy(number, float(gold)), number, "first number")


@register("vsi_vlmevalkit")
@dataclass(frozen=True)
class VsiVlmevalkit(_Vsi):
    """VSI-Bench in VLMEvalKit: choices: [letter(response) == letter(gold)]; numbers: mean relative accuracy
    of the last number after the thinking.

    Code: VLMEvalKit e8e78f05 (spatial_bench). Its optional judge is not used.
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        if is_choice(row):
            letter = easi_letter(response.text)
            return self.scored(float(str(letter) == str(easi_letter(gold.strip()))), letter, "letter")
        number = last_number(response.text)
        return self.scored(mean_relative_accuracy(number, float(gold), guard=True), number, "last number")
