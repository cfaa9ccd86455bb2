"""`verify`: one entry to every kind of answer, for training, evaluation and audits."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

from vlrl.registry import discover, suggest
from vlrl.stages import Reward
from vlrl_rewards.kinds import VERIFIERS, as_case, check_options
from vlrl_rewards.math.pool import waited, warm
from vlrl_rewards.verdict import Verdict

_MATHEMATICAL = ("math", "numeric", "auto")  # they may ask math-verify: its process starts with the kind, once, and only a question for it waits
_TEXT_KINDS = (
    "math.verifier", "text.choice", "text.yes_no", "text.verifier", "format.structure", "format.instructions", "auto", "code.verifier",
)  # fmt: skip


def load(kind: str) -> None:
    """Import what registers `kind`: the text kinds first, then (slower) every module of the package. Raises ValueError if none does."""
    for module in _TEXT_KINDS:
        if kind in VERIFIERS:
            return
        importlib.import_module(f"vlrl_rewards.{module}")
    if kind not in VERIFIERS and kind not in kinds():
        raise ValueError(f"kind: no kind named {kind!r}.{suggest(kind, VERIFIERS)}")


def kinds() -> list[str]:
    """Every kind that `verify` knows, sorted ("auto" too); every module of the package is imported for it."""
    discover(Reward)
    return sorted(VERIFIERS)


def verify(gold: Any, response: str, kind: str = "auto", choices: Sequence[str] | None = None, **options: Any) -> Verdict:
    """Judge a response.

    gold: the right answer, in the form the kind reads (text, number, list, box in original pixels ...). response: what the model wrote, thinking
    included.
    kind: one of `kinds()`; "auto" infers it from gold and choices. options: the keyword options of the kind (tolerances, units ...).
    Raises ValueError on an unknown kind or option and on a gold answer that is broken; a bad response is a wrong verdict, never an error.
    """
    load(kind)
    if kind in _MATHEMATICAL:
        warm()
    started = time.perf_counter() - waited()
    check_options(kind, options)
    case = as_case(gold, response, choices, options)
    return VERIFIERS[kind](case, **options).timed(time.perf_counter() - waited() - started)
