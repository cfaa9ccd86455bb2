"""kind="auto": infers the kind from the gold answer and the choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.kinds import KINDS, verifier
from vlrl_rewards.math.read import read
from vlrl_rewards.parsing import clean, committed
from vlrl_rewards.text.choice import Options
from vlrl_rewards.text.yes_no import yes_or_no

_LETTER = re.compile(r"\(?([A-J])\)?\.?")
_MATH = re.compile(r"\\[a-zA-Z]+|[\^_=<>≤≥±√π∞]|\d\s*[+*/]\s*\d|^[\[({].*[\])}]$")
_CLOCK = re.compile(
    r"\d{1,2}:\d{2}(?::\d{2})?(?:\s?[aApP]\.?[mM]\.?)?|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}"
)


def _numbers(value: Any) -> bool:
    return all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value)


def _of_text(gold: str) -> str:
    inner = committed(gold) if re.search(r"\\boxed|<answer>|####", gold) else None
    gold = inner.text if inner is not None and not inner.problem else gold
    plain = clean(gold)
    if _LETTER.fullmatch(plain):
        return "mcq"
    if plain.casefold().strip(".") in ("yes", "no", "true", "false") and yes_or_no(plain) is not None:
        return "yes_no"
    if plain.startswith("{") and '"' in plain and ":" in plain:
        return "json"
    if _CLOCK.fullmatch(plain):
        return "text"
    return "math" if _MATH.search(gold) or _is_number(gold) else "text"


def _is_number(gold: str) -> bool:
    reading = read(gold) if any(char.isdigit() for char in gold) and len(gold) < 300 else None
    if reading is None or (
        reading.unit is not None
        and reading.unit.noun
        and (len(gold.split()) > 3 or re.search(r"\s[A-Z]", gold))
    ):
        return False
    return reading.node[0] in ("num", "neg", "div", "mul", "add", "pct", "deg", "seq", "rel", "pow")


def infer(gold: Any, choices: tuple[str, ...] = ()) -> str:
    """The kind that fits a gold answer. Raises GoldError if none does."""
    if choices:
        if {clean(choice).casefold() for choice in choices} in ({"yes", "no"}, {"true", "false"}) and str(
            gold
        ).casefold() in (
            "yes",
            "no",
            "true",
            "false",
        ):
            return "yes_no"
        Options.of(choices).gold(gold)
        return "mcq"
    if isinstance(gold, bool):
        return "yes_no"
    if isinstance(gold, (int, float)):
        return "math"
    if isinstance(gold, str):
        return _of_text(gold)
    if isinstance(gold, Mapping):
        return "json"
    if isinstance(gold, (list, tuple)) and gold:
        if len(gold) == 4 and _numbers(gold) and "boxes" in KINDS and gold[0] < gold[2] and gold[1] < gold[3]:
            return "boxes"
        if all(isinstance(item, (list, tuple)) for item in gold):
            return "boxes" if all(len(item) == 4 and _numbers(item) for item in gold) else "table"
        return "math" if _numbers(gold) else "list"
    raise GoldError(f"gold: no kind can be inferred from {gold!r}; give kind=...")


@verifier("auto")
def auto(response: Response, gold: Any, row: Row) -> Verdict:
    """The verdict of the kind inferred from gold and choices."""
    return KINDS[infer(gold, row.choices)].score(response, gold, row)
