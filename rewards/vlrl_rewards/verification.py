"""`verify`: the entry to every kind of answer, for training, evaluation and audits."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

from vlrl.plugins.registry import discover, suggest
from vlrl.plugins.stages import Reward
from vlrl_rewards.kinds import VERIFIERS, as_case, check_options
from vlrl_rewards.math.pool import waited, warm
from vlrl_rewards.verdict import Verdict

_MATHEMATICAL = (
    "math",
    "numeric",
    "auto",
)  # kinds that may use math-verify: its worker process starts with the first of them
_TEXT_KINDS = (
    "math.verifier", "text.choice", "text.yes_no", "text.verifier", "format.structure", "format.instructions",
    "auto", "code.verifier",
)  # fmt: skip


def load(kind: str) -> None:
    """Import the module that registers `kind`: the text kinds first, then (slower) the whole package. Raises
    ValueError on an unknown kind."""
    for module in _TEXT_KINDS:
        if kind in VERIFIERS:
            return
        importlib.import_module(f"vlrl_rewards.{module}")
    if kind not in VERIFIERS and kind not in kinds():
        raise ValueError(f"kind: no kind named {kind!r}.{suggest(kind, VERIFIERS)}")


def kinds() -> list[str]:
    """The names of all kinds, sorted, "auto" included. Imports every module of the package."""
    discover(Reward)
    return sorted(VERIFIERS)


def verify(
    gold: Any, response: str, kind: str = "auto", choices: Sequence[str] | None = None, **options: Any
) -> Verdict:
    """Judge a response.

    Args:
        gold: the gold answer in the form that the kind reads (text, number, list, box in original pixels
            ...).
        response: the model's text, thinking included.
        kind: one of `kinds()`; "auto" infers it from `gold` and `choices`.
        choices: the options of a multiple-choice question.
        options: the keyword options of the kind (tolerances, units ...).

    Raises ValueError on an unknown kind or option and on a broken gold answer. A bad response is a wrong
    verdict, never an error.
    """
    load(kind)
    if kind in _MATHEMATICAL:
        warm()
    started = time.perf_counter() - waited()
    check_options(kind, options)
    case = as_case(gold, response, choices, options)
    return VERIFIERS[kind](case, **options).finished(time.perf_counter() - waited() - started)
