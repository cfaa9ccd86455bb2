r"""kind="math" and kind="numeric": the right number, expression, list, set, interval or equation, in any
notation.

Comparison is exact (`vlrl_rewards.math.judge`). Tolerances are options of "numeric", relative to the gold.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from vlrl.plugins.scoring import MAX_SHOWN, Answer, GoldError, Response, Unread, Verdict, right, wrong
from vlrl.types import Row
from vlrl_rewards.kinds import verifier
from vlrl_rewards.math.answer import NO_ANSWER, find_answer, lone_number
from vlrl_rewards.math.dates import read_clock, same_moment
from vlrl_rewards.math.equality import literal
from vlrl_rewards.math.judge import (
    GLUED_UNIT,
    in_base_unit,
    is_worded,
    judge,
    read_gold,
    same_quantity,
    words_of,
)
from vlrl_rewards.math.lexer import Node
from vlrl_rewards.math.read import Reading, read
from vlrl_rewards.math.value import NoValue, TooBig, exact, numeric, refuel, symbols
from vlrl_rewards.parsing import clean, visible
from vlrl_rewards.runs import without_runs
from vlrl_rewards.text.denials import refuses
from vlrl_rewards.text.verifier import text as text_kind

_SCALES = {"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}
_SHORT_SCALE = re.compile(r"(?<=\d)\s?([kKMBT])(?=\W*$)")


@verifier("math")
@without_runs
def math(response: Response, gold: Any, row: Row) -> Verdict:
    """Mathematical equality of the committed answer and the gold answer. Raises GoldError on an empty
    gold."""
    wanted = _gold_text(gold)
    answer, problem = find_answer(response)
    if answer is None and problem == NO_ANSWER:
        seen = visible(response.text)
        if len(seen) < 400 and clean(seen) == clean(wanted):
            return right(Answer(seen, 0, len(seen), "text"), "same text", "text")
        if is_worded(wanted):
            return text_kind(response, words_of(wanted), row)
    if answer is None:
        raise Unread(problem)
    if _declined(response, answer, wanted):
        raise Unread("a refusal", answer)
    same, reason, route = judge(wanted, answer)
    return _shown((right if same else wrong)(answer, reason, route), read(answer.text))


def _shown(found: Verdict, reading: Reading | None) -> Verdict:
    """The verdict with the part of the answer that was read, and the words that were left over."""
    if reading is None:
        return found
    return replace(
        found, details={"read": reading.text[:MAX_SHOWN], "left_over": reading.left_over[:MAX_SHOWN]}
    )


def _gold_text(gold: Any) -> str:
    if isinstance(gold, (list, tuple)):
        gold = ", ".join(str(item) for item in gold)
    if gold is None or not str(gold).strip():
        raise GoldError("gold: the gold answer is empty, so no answer can be right")
    return str(gold).strip()


def _declined(response: Response, answer: Answer, gold: str) -> bool:
    """Whether the response refuses: near the answer, or anywhere in a short response."""
    text = visible(response.text)
    near = text[max(0, answer.start - 300) : answer.end + 200] if len(text) > 600 else text
    return refuses(near) and not refuses(gold)


@verifier("numeric")
@without_runs
def numeric_kind(
    response: Response,
    gold: Any,
    row: Row,
    *,
    rel_tol: float = 0.0,
    abs_tol: float = 0.0,
    digits: int = 0,
    unit: str = "",
) -> Verdict:
    """Numeric equality: exact by default (six digits for values without a finite decimal form), or within
    max(abs_tol, rel_tol * |gold|).

    digits: also accept an answer that rounds to the gold at the gold's precision, if the gold has at least
    this many significant digits (0: off). unit: the unit of a gold that is written without one. Units are
    converted; an answer in a unit of another dimension is wrong.
    """
    refuel()
    gold_text = _gold_text(gold)
    wanted = read_gold(gold_text + (f" {unit}" if unit else ""))
    value = None if wanted is None else _number(wanted.node)
    if wanted is None or value is None:
        return math(response, gold, row)
    answer, problem = find_answer(response)
    if answer is None:
        raise Unread(problem)
    if _declined(response, answer, gold_text):
        raise Unread("a refusal", answer)
    if read_clock(gold_text) is not None and re.search(r"(?i)\d\s?[ap]\.?m", gold_text + answer.text):
        same = same_moment(gold_text, answer.text)
        return (right if same else wrong)(answer, "the same time" if same else "another time", "clock")
    said = read(answer.text)
    if said is not None and said.decimal is not None and _number(said.node) is None:
        said = replace(said, node=said.decimal)
    try:
        number = None if said is None else _number(in_base_unit(said, wanted.unit))
        if number is None:  # "2.5m"
            said = read(GLUED_UNIT.sub(" ", answer.text))
            number = None if said is None else _number(in_base_unit(said, wanted.unit))
        if wanted.unit is None and (number is None or _SHORT_SCALE.search(answer.text)):
            freer = _freer(answer.text)
            said, number = freer if freer[1] is not None else (said, number)
        if said is None or number is None:
            raise Unread(f"{clean(answer.text)[:80]!r} is not a number", answer)
        same, why = same_quantity(wanted, said)
        target = _number(in_base_unit(wanted, said.unit)) or Fraction(0)
    except (TooBig, NoValue, RecursionError) as error:
        raise Unread(f"no comparable number: {error}", answer) from None
    tolerance = max(Fraction(abs_tol), Fraction(rel_tol) * abs(target))
    if not same and why != "conflicting units" and abs(number - target) <= tolerance and tolerance:
        same, why = True, f"within {float(tolerance):g}"
    if not same and digits and why != "conflicting units":
        same = _rounds(wanted.node, number, digits)
        why = "rounds to the gold" if same else why
    reason = why if same else f"{why}: {clean(answer.text)[:80]!r} is not {gold_text[:80]!r}"
    return _shown((right if same else wrong)(answer, reason, "number"), said)


def _freer(text: str) -> tuple[Reading | None, Fraction | None]:
    """The number of an answer with a short scale ("1.5M"), or the only number of a clause; (None, None) if
    there is none."""
    lone = lone_number(text) if "\\" not in text else None
    scaled = _SHORT_SCALE.sub(lambda m: " " + _SCALES[m[1].lower()], text)
    tries = [scaled] if scaled != text else []
    tries += [text[slice(*lone)]] if lone else []
    for attempt in tries:
        said = read(attempt)
        number = None if said is None else _number(said.node)
        if number is not None:
            return said, number
    return None, None


def _number(node: Node) -> Fraction | None:
    """The value of one real number as a fraction (50 digits where it is irrational); None for anything
    else."""
    if node[0] == "rel" and node[2] == "=" and node[1][0] == "sym":
        node = node[3]
    if symbols(node) or node[0] in ("seq", "matrix", "text", "rel", "base", "cup"):
        return None
    try:
        value = exact(node)
        if value is not None:
            return value
        approx = numeric(node, {})
    except NoValue:
        return None
    return Fraction(str(approx.real)) if approx.imag == 0 else None


def _rounds(gold: Node, number: Fraction, digits: int) -> bool:
    short = literal(gold)
    if short is None or short[1] < digits or short[0] == 0:
        return False
    scale = len(str(abs(short[0].numerator) // short[0].denominator).lstrip("0")) if abs(short[0]) >= 1 else 0
    half = Fraction(1, 2) / Fraction(10) ** (short[1] - scale)
    return abs(number - short[0]) <= half
