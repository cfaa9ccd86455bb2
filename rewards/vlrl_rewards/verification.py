"""`verify`: the entry to every kind of answer, for training, evaluation and audits."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl.plugins.registry import discover, suggest
from vlrl.plugins.scoring import Response, Unread, Verdict, unread
from vlrl.plugins.stages import Reward
from vlrl.types import Row
from vlrl_rewards.kinds import KINDS
from vlrl_rewards.math.pool import waited, warm

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
        if kind in KINDS:
            return
        importlib.import_module(f"vlrl_rewards.{module}")
    if kind not in KINDS and kind not in kinds():
        raise ValueError(f"kind: no kind named {kind!r}.{suggest(kind, KINDS)}")


def kinds() -> list[str]:
    """The names of all kinds, sorted, "auto" included. Imports every module of the package."""
    discover(Reward)
    return sorted(KINDS)


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
    verdict, or one that is `unread`, never an error.
    """
    load(kind)
    KINDS[kind].check(kind, options)
    if not isinstance(response, str):
        raise ValueError(f"response must be text, got {type(response).__name__}: {response!r:.80}")
    policy = Response(response, tuple(options.pop("spaces", ())))
    row = Row(kind, "", gold, choices=tuple(map(str, choices or ())), meta=options.pop("meta", {}))
    return score_by(kind, policy, gold, row, options)


def score_by(kind: str, response: Response, gold: Any, row: Row, options: Mapping[str, Any]) -> Verdict:
    """The verdict of a kind on a response to a row."""
    load(kind)
    if kind in _MATHEMATICAL:
        warm()
    started = time.perf_counter() - waited()
    KINDS[kind].check(kind, options)
    try:
        found = KINDS[kind].score(response, gold, row, **options)
    except Unread as nothing:
        found = unread(nothing)
    return found.finished(time.perf_counter() - waited() - started)
