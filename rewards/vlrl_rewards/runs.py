"""Long runs of one character in a response, shortened before a verifier reads it.

White space and rows of dashes or dots carry no answer, but cost a pattern with two ways to read a space the
square of their length, and push a retraction out of the text that is searched for one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from vlrl.plugins.scoring import Response, Unread, Verdict
from vlrl_rewards.parsing import visible

MAX_SPACES = 8
MAX_SAME = 64  # more than the parser of mathematics reads of brackets, signs or factorials
_RUN = re.compile(rf"\s{{{MAX_SPACES + 1},}}|([\W_])\1{{{MAX_SAME},}}")


def _short(run: re.Match[str]) -> str:
    """A shorter run that reads the same: with its line ends, and as odd or even as it was."""
    if run[1] is None:
        return "\n\n" if run[0].count("\n") > 1 else "\n" if "\n" in run[0] else " " * MAX_SPACES
    return run[1] * (MAX_SAME + len(run[0]) % 2)


def shortened(text: str) -> tuple[str, Callable[[int], int]]:
    """(the text with shorter runs, the offset in `text` of an offset in it)."""
    parts: list[str] = []
    starts, removed = [0], [0]
    at = new = 0
    for run in _RUN.finditer(text):
        short = _short(run)
        parts += [text[at : run.start()], short]
        new += run.start() - at + len(short)
        at = run.end()
        starts.append(new)
        removed.append(at - new)
    return "".join([*parts, text[at:]]), lambda place: place + removed[bisect_right(starts, place) - 1]


def without_runs(score: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """The scoring function on the visible text without long runs. Spans are those of the response."""

    @wraps(score)
    def scored(response: Response, gold: Any, row: Any, **options: Any) -> Verdict:
        seen = visible(response.text)
        text, place = shortened(seen)
        if text == seen or not text.strip():
            return score(response, gold, row, **options)
        try:
            found = score(replace(response, text=text), gold, row, **options)
        except Unread as nothing:
            answer = nothing.answer
            if answer is not None:
                answer = replace(answer, start=place(answer.start), end=place(answer.end))
            raise Unread(str(nothing), answer) from None
        span = found.span and (place(found.span[0]), place(found.span[1]))
        return replace(found, span=span)

    return scored
