"""What rows look like, and the reward and the prompt that fit them: the eyes of `vlrl init`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vlrl.types import Row

MOST = 0.9  # share of rows that a kind of answer must fit
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_MATHS = re.compile(r"\\[a-z]+|[$^=]|\d\s*[-+*/]\s*\d|sqrt")


class RewardProposal(NamedTuple):
    """A reward for some rows: `says` what the answers are, `share` how many of the rows are like that."""

    reward: str
    style: str
    says: str
    share: float


def _numbers(answer: Any, count: int) -> bool:
    """Whether an answer is a list of so many numbers (0: any number of them)."""
    return (
        isinstance(answer, (list, tuple))
        and len(answer) == (count or len(answer)) > 0
        and all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in answer)
    )


def _boxes(answer: Any) -> bool:
    items = answer if isinstance(answer, (list, tuple)) else ()
    return bool(items) and all(
        (isinstance(item, dict) and {"bbox", "bbox_2d", "box"} & set(item)) or _numbers(item, 4)
        for item in items
    )


def _order(answer: Any) -> bool:
    return _numbers(answer, 0) and len(answer) > 1 and sorted(answer) == list(range(1, len(answer) + 1))


def _letter(row: Row) -> bool:
    text = str(row.answer).strip()
    return bool(row.choices) and (len(text) == 1 or text in row.choices)


def _text(row: Row) -> str:
    return "" if isinstance(row.answer, (list, tuple, dict)) else str(row.answer).strip()


def _short(row: Row, words: int) -> bool:
    return 0 < len(_text(row).split()) <= words


def _maths(row: Row) -> bool:
    return not (row.images or row.videos) and bool(_NUMBER.fullmatch(_text(row)) or _MATHS.search(_text(row)))


def _counted(row: Row) -> bool:
    return bool((row.images or row.videos) and re.fullmatch(r"\+?\d+", _text(row)))


# first that fits most rows: (reward, style of the prompt, what the answers are, whether a row is like that)
KINDS: Sequence[tuple[str, str, str, Callable[[Row], Any]]] = (
    ("mcq", "think", "letters of choices", _letter),
    ("order", "think", "orders of items", lambda row: _order(row.answer)),
    ("temporal_iou", "think", "spans of a video", lambda row: row.videos and _numbers(row.answer, 2)),
    ("iou", "think", "boxes", lambda row: _numbers(row.answer, 4)),
    ("detection", "think", "lists of boxes", lambda row: _boxes(row.answer)),
    ("point", "think", "points", lambda row: row.images and _numbers(row.answer, 2)),
    ("yes_no", "think", "yes or no", lambda row: _text(row).lower() in ("yes", "no", "true", "false")),
    ("counting", "think", "whole numbers, of pictures", _counted),
    ("math", "boxed", "numbers or formulas, without pictures", _maths),
    ("numeric", "think", "numbers", lambda row: bool(_NUMBER.fullmatch(_text(row)))),
    ("exact", "think", "a word or a few", lambda row: _short(row, 5)),
    ("text_metric", "think", "sentences", lambda row: bool(_text(row))),
)  # fmt: skip
FORMATS = {
    "think": "tag_format",
    "answer": "tag_format",
    "boxed": "boxed_format",
}  # style -> its format reward


def propose(rows: Sequence[Row]) -> RewardProposal | None:
    """The first kind that most of the answers are; where there is none, the one that most of them are. None
    where no kind fits any row."""
    best: RewardProposal | None = None
    for reward, style, says, fits in KINDS:
        share = sum(bool(fits(row)) for row in rows) / max(len(rows), 1)
        if share >= MOST:
            return RewardProposal(reward, style, says, share)
        if share > (best.share if best else 0.0):
            best = RewardProposal(reward, style, says, share)
    return best
