"""MR-RLVR: self-supervised process tasks made of worked solutions. Masked-then-fill hides spans, step
reordering shuffles the steps.

Paper: Wang et al. 2025 (MR-RLVR), arXiv:2511.17473. No released code was found.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import MappedRows
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)


@register("mr_rlvr.masked_steps")
@dataclass(frozen=True)
class MrRlvrMaskedSteps(Select):
    """MR-RLVR's masked-then-fill: the question and its solution, in which `blanks` spans are written as [1],
    [2], ...; the answer is these spans.

    The solution is the reasoning of the row's `target`. Rows of task `fill`, for reward `filled`; rows with
    fewer than `blanks` spans are dropped, so every row is read once. Pictures stay.
    Paper: Wang et al. 2025 (MR-RLVR), arXiv:2511.17473, masked-then-fill. No released code was found. Ours:
    spans are matches of the regular expression `span`, numbers and $formulas$, chosen uniformly by the seed
    and the row's id (the paper masks what matters in key steps), and the words of the question.
    """

    blanks: int = 2
    span: str = r"\$[^$]+\$|\d+(?:\.\d+)?"
    ask: str = "Fill the numbered blanks of this working, in order, separated by semicolons:"
    seed: int = 0

    def __post_init__(self) -> None:
        check_pattern(self.span, "span")
        if self.blanks < 1:
            raise ConfigError(f"select: blanks={self.blanks} of 'mr_rlvr.masked_steps' must be at least 1")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        numbers = [
            i
            for i in range(len(rows))
            if sum(1 for _ in re.finditer(self.span, solution_of(rows[i]))) >= self.blanks
        ]
        return MappedRows(rows, numbers, self.masked)

    def masked(self, row: Row, copy: int) -> Row:
        """The masked-then-fill task of a row."""
        text = solution_of(row)
        spans = list(re.finditer(self.span, text))
        chosen = sorted(random.Random(f"{self.seed}/masked/{row.id}").sample(range(len(spans)), self.blanks))
        answer, shown, end = [], "", 0
        for number, place in enumerate(chosen, 1):
            answer.append(spans[place][0])
            shown += text[end : spans[place].start()] + f"[{number}]"
            end = spans[place].end()
        question = f"{row.question}\n{self.ask}\n{shown}{text[end:]}"
        target = f"<answer>{'; '.join(answer)}</answer>"
        return dataclasses.replace(
            row,
            id=f"{row.id}/fill",
            question=question,
            answer=answer,
            target=target,
            choices=(),
            task="fill",
            rewards=(),
        )


@register("mr_rlvr.shuffled_steps")
@dataclass(frozen=True)
class MrRlvrShuffledSteps(Select):
    """MR-RLVR's step reordering: the question and the numbered steps of its solution in random order; the
    answer is their numbers in the right order.

    The solution is the reasoning of the row's `target`. Rows of task `reorder`, for reward `order`; rows with
    fewer than `min_steps` steps, or with a step twice, are dropped, so every row is read once. Pictures stay.
    Paper: Wang et al. 2025 (MR-RLVR), arXiv:2511.17473, step reordering. No released code was found. Ours:
    the regular expression `split` separates the steps, by default at line breaks; the order shown is drawn by
    the seed and the row's id and is never the right one; the words of the question.
    """

    split: str = r"\n+"
    min_steps: int = 3
    ask: str = (
        "Here are the steps of its working, out of order. Give their numbers in the right order, separated "
        "by commas:"
    )
    seed: int = 0

    def __post_init__(self) -> None:
        check_pattern(self.split, "split")
        if self.min_steps < 2:
            raise ConfigError(
                f"select: min_steps={self.min_steps} of 'mr_rlvr.shuffled_steps' must be at least 2"
            )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        steps_of = ((i, self.steps(rows[i])) for i in range(len(rows)))
        return MappedRows(
            rows,
            [i for i, steps in steps_of if len(steps) >= self.min_steps and len(set(steps)) == len(steps)],
            self.shuffled,
        )

    def steps(self, row: Row) -> list[str]:
        """The steps of the solution; empty ones are left out."""
        return [step.strip() for step in re.split(self.split, solution_of(row)) if step.strip()]

    def shuffled(self, row: Row, copy: int) -> Row:
        """The step reordering task of a row."""
        steps = self.steps(row)
        order: list[int] = []
        rng = random.Random(f"{self.seed}/shuffled/{row.id}")
        while not order or order == sorted(order):
            order = rng.sample(range(len(steps)), len(steps))
        shown = "\n".join(f"{number}) {steps[place]}" for number, place in enumerate(order, 1))
        answer = [order.index(place) + 1 for place in range(len(steps))]
        target = f"<answer>{', '.join(map(str, answer))}</answer>"
        question = f"{row.question}\n{self.ask}\n{shown}"
        return dataclasses.replace(
            row,
            id=f"{row.id}/order",
            question=question,
            answer=answer,
            target=target,
            choices=(),
            task="reorder",
            rewards=(),
        )


def solution_of(row: Row) -> str:
    """The worked solution in the row's `target`: the text between its think tags, else the target without its
    answer tags."""
    thought = _THOUGHT.search(row.target)
    return (thought[1] if thought else _ANSWER.sub("", row.target)).strip()


def check_pattern(pattern: str, key: str) -> None:
    """Raise ConfigError for a text that is not a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"select: {key}={pattern!r} is not a regular expression: {error}") from None
