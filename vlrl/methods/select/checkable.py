"""Only rows whose answer can be checked, and is worth checking."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlrl.methods.select.basic import Chosen
from vlrl.registry import ConfigError, register
from vlrl.stages import Select
from vlrl.types import Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def plain(text: object) -> str:
    """Folded for comparison: case and spaces do not count."""
    return " ".join(str(text).split()).casefold()


@register("checkable")
@dataclass(frozen=True)
class Checkable(Select):
    """Drops choices without their answer (neither its letter nor its text is an option) and open answers longer than `words` words.

    Paper: Akter et al. 2025 (Nemotron-CrossThink), arXiv:2504.13941, filtering for verifiable answers: its principle; the bound of ten words is the
    figure that is commonly given for it, and was not found in the text that could be read. Edge: an answer that is no text (a number, a box) is kept;
    an empty one is dropped. Every row is read once.
    """

    words: int = 10

    def __post_init__(self) -> None:
        if self.words < 1:
            raise ConfigError(f"select: checkable needs words of at least 1, got {self.words}")

    def fits(self, row: Row) -> bool:
        """Whether the row is kept."""
        if not isinstance(row.answer, str):
            return row.answer is not None
        said = plain(row.answer).strip("().")
        if row.choices:
            return said in {letter.casefold() for letter in LETTERS[: len(row.choices)]} or said in map(plain, row.choices)
        return 0 < len(said.split()) <= self.words

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return Chosen(rows, [i for i in range(len(rows)) if self.fits(rows[i])])


def listed(question: str, options: str) -> bool:
    """Whether the last places of the options A, B, C, D (or 1, 2, 3, 4) in a question come in that order; "ABCD" itself does not count."""
    question = question.replace(options, "")
    places = [question.rfind(option) for option in options]
    return min(places) >= 0 and places == sorted(places)


_PARTS = re.compile(
    r"\([1-9][^)]*\).*\([1-9][^)]*\)|\d+\..*\d+\.|\(i+\).*\(i+\)|(?:^|\s)(?:1[.)]|i[.)]|①).*(?:\s|$)(?:2[.)]|ii[.)]|②)", re.IGNORECASE
)
_YES_NO = re.compile(r"\b(?:yes|no)\b", re.IGNORECASE)
_TRUE_FALSE = re.compile(r"true|false", re.IGNORECASE)
RULES: dict[str, Callable[[Row], bool]] = {
    "choice": lambda row: bool(row.choices) or listed(row.question, "ABCD") or listed(row.question, "1234"),
    "parts": lambda row: bool(_PARTS.search(row.question)),
    "proof": lambda row: any(words in row.question.lower() for words in ("prove that", "a proof")),
    "yes_no": lambda row: bool(_YES_NO.search(str(row.answer))) or row.question.strip().split("\n")[-1].lower().startswith(
        ("is ", "are ", "do ", "does ", "can ")),
    "true_false": lambda row: bool(_TRUE_FALSE.search(str(row.answer))),
    "link": lambda row: "http://" in row.question or "https://" in row.question,
}  # fmt: skip


@register("open_ended")
@dataclass(frozen=True)
class OpenEnded(Select):
    """Drops what `rules` find: choice, parts (several questions in one), proof, yes_no, true_false, link.

    Paper: Albalak et al. 2025 (Big-Math), arXiv:2502.17387; the first five after its rule-based signals, add_*_signal.py of the release, as they
    stand but for Roman parts, which there are looked for in capitals in a text made lower-case. Deviates: models judge each of these too in the
    paper, and languages and near-duplicates; that is left out. The rule for choices errs on the side of dropping. Every row is read once.
    """

    rules: tuple[str, ...] = ("choice", "parts", "proof", "yes_no", "true_false", "link")

    def __post_init__(self) -> None:
        unknown = [rule for rule in self.rules if rule not in RULES]
        if unknown or not self.rules:
            raise ConfigError(f"select: open_ended has no rule {unknown[0] if unknown else 'at all'!r}. Known: {', '.join(RULES)}.")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return Chosen(rows, [i for i in range(len(rows)) if not any(RULES[rule](rows[i]) for rule in self.rules)])


@register("between")
@dataclass(frozen=True)
class Between(Select):
    """Rows with low <= meta[by] <= high.

    vlrl original (difficulty bounds are common: DeepMath-103K, arXiv:2504.11456, is mostly of levels 5 to 9). Edge: rows without a number there are
    dropped. Every row is read once.
    """

    by: str = "difficulty"
    low: float = float("-inf")
    high: float = float("inf")

    def __post_init__(self) -> None:
        if self.low > self.high or not self.by:
            raise ConfigError(f"select: between needs a field and low <= high, got by={self.by!r}, low={self.low}, high={self.high}")

    def fits(self, row: Row) -> bool:
        """Whether the row is kept."""
        value = row.meta.get(self.by)
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return Chosen(rows, [i for i in range(len(rows)) if self.fits(rows[i])])
