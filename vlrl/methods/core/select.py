"""Selects: which rows are trained on, decided once before training.

take         the first rows, or as many at random
order        rows sorted by a field of `meta`
tasks        rows of some tasks
pass_rate    rows with a measured pass rate in a range
between      rows with a number of `meta` in a range
listed       rows by id
checkable    rows whose answer can be verified (Nemotron-CrossThink)
open_ended   no choices, proofs, yes-no questions and the like (Big-Math)
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row, RowView


class MappedRows(RowView):
    """Rows made of other rows when they are read: `make(rows[numbers[i // copies]], i % copies)`, every
    chosen row `copies` times."""

    def __init__(
        self, rows: Sequence[Row], numbers: Sequence[int], make: Callable[[Row, int], Row], copies: int = 1
    ) -> None:
        self.rows, self.numbers, self.make, self.copies = rows, numbers, make, copies

    def __len__(self) -> int:
        return len(self.numbers) * self.copies

    def at(self, index: int) -> Row:
        return self.make(self.rows[self.numbers[index // self.copies]], index % self.copies)


class SelectedRows(RowView):
    """Rows by number, read when they are accessed."""

    def __init__(self, rows: Sequence[Row], numbers: Sequence[int]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, index: int) -> Row:
        return self.rows[self.numbers[index]]


@register("take")
@dataclass(frozen=True)
class Take(Select):
    """`count` rows: the first ones, or with a `seed` random ones, in their original order.

    vlrl original. Edge: fewer rows than `count`: all of them.
    """

    count: int
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"select: take needs a count of at least 1, got {self.count}")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        numbers: Sequence[int] = range(min(self.count, len(rows)))
        if self.seed is not None:
            numbers = sorted(random.Random(self.seed).sample(range(len(rows)), len(numbers)))
        return SelectedRows(rows, numbers)


@register("pass_rate")
@dataclass(frozen=True)
class PassRate(Select):
    """Rows with low <= meta.pass_rate <= high, as stored by `vlrl data difficulty`.

    vlrl original (the band itself is common: MM-EUREKA, arXiv:2503.07365, keeps 0.1-0.9; DAPO,
    arXiv:2503.14476, drops 0 and 1). Edge: `missing` decides about rows without a measured rate: keep or
    drop.
    """

    low: float = 0.1
    high: float = 0.9
    missing: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ConfigError(
                f"select: pass_rate needs 0 <= low <= high <= 1, got low={self.low}, high={self.high}"
            )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return SelectedRows(rows, [i for i in range(len(rows)) if self._fits(rows[i])])

    def _fits(self, row: Row) -> bool:
        rate = row.meta.get("pass_rate")
        return self.missing == "keep" if rate is None else self.low <= float(rate) <= self.high


@register("order")
@dataclass(frozen=True)
class Order(Select):
    """Rows sorted by a `meta` field, ascending (or descending): with `prompt_sampler: {name: shuffle,
    shuffle: false}` a curriculum.

    vlrl original. Edge: equal values keep their order; rows without the field come last.
    """

    by: str = "pass_rate"
    descending: bool = False

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        values: list[Any] = [rows[i].meta.get(self.by) for i in range(len(rows))]
        with_field = sorted(
            (i for i, value in enumerate(values) if value is not None),
            key=lambda i: values[i],
            reverse=self.descending,
        )
        return SelectedRows(rows, with_field + [i for i, value in enumerate(values) if value is None])


@register("tasks")
@dataclass(frozen=True)
class Tasks(Select):
    """Rows of the given tasks. vlrl original."""

    keep: tuple[str, ...]

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return SelectedRows(rows, [i for i in range(len(rows)) if rows[i].task in self.keep])


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def normalised(text: object) -> str:
    """Text normalised for comparison: lower case, single spaces."""
    return " ".join(str(text).split()).casefold()


@register("checkable")
@dataclass(frozen=True)
class Checkable(Select):
    """Rows whose answer can be verified: drops choices without their answer (neither its letter nor its text
    is an option) and open answers of more than `words` words.

    Paper: Akter et al. 2025 (Nemotron-CrossThink), arXiv:2504.13941, filtering for verifiable answers: its
    principle; the bound of ten words is the figure that is commonly given for it, and was not found in the
    text that could be read. Edge: an answer that is not text (a number, a box) is kept; an empty one is
    dropped. Every row is read once.
    """

    words: int = 10

    def __post_init__(self) -> None:
        if self.words < 1:
            raise ConfigError(f"select: checkable needs words of at least 1, got {self.words}")

    def fits(self, row: Row) -> bool:
        """Whether the row is kept."""
        if not isinstance(row.answer, str):
            return row.answer is not None
        answer = normalised(row.answer).strip("().")
        if row.choices:
            return answer in {letter.casefold() for letter in LETTERS[: len(row.choices)]} or answer in map(
                normalised, row.choices
            )
        return 0 < len(answer.split()) <= self.words

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return SelectedRows(rows, [i for i in range(len(rows)) if self.fits(rows[i])])


def has_options(question: str, options: str) -> bool:
    """Whether the last places of the options A, B, C, D (or 1, 2, 3, 4) in a question are in that order;
    "ABCD" itself does not count."""
    question = question.replace(options, "")
    places = [question.rfind(option) for option in options]
    return min(places) >= 0 and places == sorted(places)


_PARTS = re.compile(
    (
        r"\([1-9][^)]*\).*\([1-9][^)]*\)|\d+\..*\d+\.|\(i+\).*\(i+\)|(?:^|\s)(?:1[.)]|i[.)]|①).*(?:\s|"
        r"$)(?:2[.)]|ii[.)]|②)"
    ),
    re.IGNORECASE,
)
_YES_NO = re.compile(r"\b(?:yes|no)\b", re.IGNORECASE)
_TRUE_FALSE = re.compile(r"true|false", re.IGNORECASE)
RULES: dict[str, Callable[[Row], bool]] = {
    "choice": lambda row: (
        bool(row.choices) or has_options(row.question, "ABCD") or has_options(row.question, "1234")
    ),
    "parts": lambda row: bool(_PARTS.search(row.question)),
    "proof": lambda row: any(phrase in row.question.lower() for phrase in ("prove that", "a proof")),
    "yes_no": lambda row: (
        bool(_YES_NO.search(str(row.answer)))
        or row.question.strip().split("\n")[-1].lower().startswith(("is ", "are ", "do ", "does ", "can "))
    ),
    "true_false": lambda row: bool(_TRUE_FALSE.search(str(row.answer))),
    "link": lambda row: "http://" in row.question or "https://" in row.question,
}


@register("open_ended")
@dataclass(frozen=True)
class OpenEnded(Select):
    """Big-Math's filters: drops rows that one of `rules` matches: choice, parts (several questions in one),
    proof, yes_no, true_false, link.

    Paper: Albalak et al. 2025 (Big-Math), arXiv:2502.17387; the first five after its rule-based signals,
    add_*_signal.py of the release, unchanged but for Roman parts, which the release searches in capitals in a
    lower-cased text. Deviates: in the paper models judge each of these too, and languages and
    near-duplicates; that is left out. The rule for choices drops too many rows rather than too few. Every row
    is read once.
    """

    rules: tuple[str, ...] = ("choice", "parts", "proof", "yes_no", "true_false", "link")

    def __post_init__(self) -> None:
        unknown = [rule for rule in self.rules if rule not in RULES]
        if unknown or not self.rules:
            raise ConfigError(
                f"select: open_ended rules: {unknown[0] if unknown else 'none'!r} is not a rule; the rules "
                f"are {', '.join(RULES)}"
            )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return SelectedRows(
            rows, [i for i in range(len(rows)) if not any(RULES[rule](rows[i]) for rule in self.rules)]
        )


@register("between")
@dataclass(frozen=True)
class Between(Select):
    """Rows with low <= meta[by] <= high.

    vlrl original (difficulty bounds are common: DeepMath-103K, arXiv:2504.11456, is mostly of levels 5 to 9).
    Edge: rows without a number in that field are dropped. Every row is read once.
    """

    by: str = "difficulty"
    low: float = float("-inf")
    high: float = float("inf")

    def __post_init__(self) -> None:
        if self.low > self.high or not self.by:
            raise ConfigError(
                f"select: between needs a field and low <= high, got by={self.by!r}, low={self.low}, "
                f"high={self.high}"
            )

    def fits(self, row: Row) -> bool:
        """Whether the row is kept."""
        value = row.meta.get(self.by)
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return SelectedRows(rows, [i for i in range(len(rows)) if self.fits(rows[i])])


@register("listed")
@dataclass(frozen=True)
class Listed(Select):
    """The rows whose id is one of `ids`, in their original order. `vlrl data select` writes such a list from
    a run's rollouts.

    vlrl original. Edge: raises ConfigError, with an id of each side, if no row of a source is listed.
    """

    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.ids:
            raise ConfigError("select: listed has no ids; `vlrl data select RUN -o chosen.yaml` writes them")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        wanted = set(self.ids)
        numbers = [i for i in range(len(rows)) if rows[i].id in wanted]
        if len(rows) and not numbers:
            raise ConfigError(
                f"select: none of the {len(wanted)} listed ids ({self.ids[0]!r}, ...) is a row here "
                f"({rows[0].id!r}, ...); "
                "list rows of this source, or take the source out with `null`"
            )
        return SelectedRows(rows, numbers)
