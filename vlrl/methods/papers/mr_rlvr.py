"""Tasks made of worked solutions: fill what was masked, order what was shuffled."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import Remade
from vlrl.registry import ConfigError, register
from vlrl.stages import Select
from vlrl.types import Row

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)


def worked(row: Row) -> str:
    """The working of a row's demonstration: the text between its think tags, else all of it but the answer tags."""
    thought = _THOUGHT.search(row.target)
    return (thought[1] if thought else _ANSWER.sub("", row.target)).strip()


def compiled(pattern: str, where: str) -> re.Pattern[str]:
    """A regular expression, or ConfigError."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"select: {where}={pattern!r} is not a regular expression: {error}") from None


@register("mr_rlvr.masked_steps")
@dataclass(frozen=True)
class MrRlvrMaskedSteps(Select):
    """question + its working with `blanks` of the spans that match `span` written as [1], [2], ... -> the masked spans, in order (task `fill`).

    Paper: Wang et al. 2025 (MR-RLVR), arXiv:2511.17473, masked-then-fill. No released code was found. Ours: spans are numbers and $formulas$ chosen
    evenly by the seed and the row's id (the paper masks what matters in key steps), and the words of the question. Reward: `filled`.
    Edge: rows with fewer than `blanks` spans are dropped, so every row is read once. Pictures stay.
    """

    blanks: int = 2
    span: str = r"\$[^$]+\$|\d+(?:\.\d+)?"
    ask: str = "Fill the numbered blanks of this working, in order, separated by semicolons:"
    seed: int = 0

    def __post_init__(self) -> None:
        compiled(self.span, "span")
        if self.blanks < 1:
            raise ConfigError(f"select: masked_steps needs at least 1 blank, got {self.blanks}")

    def make(self, row: Row, copy: int) -> Row:
        text = worked(row)
        spans = list(re.finditer(self.span, text))
        chosen = sorted(random.Random(f"{self.seed}/masked/{row.id}").sample(range(len(spans)), self.blanks))
        answer, shown, end = [], "", 0
        for number, place in enumerate(chosen, 1):
            answer.append(spans[place][0])
            shown += text[end : spans[place].start()] + f"[{number}]"
            end = spans[place].end()
        question = f"{row.question}\n{self.ask}\n{shown}{text[end:]}"
        target = f"<answer>{'; '.join(answer)}</answer>"
        return dataclasses.replace(row, id=f"{row.id}/fill", question=question, answer=answer, target=target, choices=(), task="fill", rewards=())

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        numbers = [i for i in range(len(rows)) if sum(1 for _ in re.finditer(self.span, worked(rows[i]))) >= self.blanks]
        return Remade(rows, numbers, self.make)


@register("mr_rlvr.shuffled_steps")
@dataclass(frozen=True)
class MrRlvrShuffledSteps(Select):
    """question + the numbered steps of its working in another order -> their numbers in the right order (task `reorder`).

    Paper: Wang et al. 2025 (MR-RLVR), arXiv:2511.17473, step reordering. No released code was found. Ours: steps are what `split` (a regular
    expression) leaves, by default lines; the order shown is drawn by the seed and the row's id and is never the right one; the words of the question.
    Reward: `order`. Edge: rows with fewer than `fewest` steps, or with a step twice, are dropped, so every row is read once. Pictures stay.
    """

    split: str = r"\n+"
    fewest: int = 3
    ask: str = "Here are the steps of its working, out of order. Give their numbers in the right order, separated by commas:"
    seed: int = 0

    def __post_init__(self) -> None:
        compiled(self.split, "split")
        if self.fewest < 2:
            raise ConfigError(f"select: shuffled_steps needs at least 2 steps, got fewest={self.fewest}")

    def steps(self, row: Row) -> list[str]:
        """The working in pieces, empty ones left out."""
        return [step.strip() for step in re.split(self.split, worked(row)) if step.strip()]

    def make(self, row: Row, copy: int) -> Row:
        steps, order = self.steps(row), []
        rng = random.Random(f"{self.seed}/shuffled/{row.id}")
        while not order or order == sorted(order):
            order = rng.sample(range(len(steps)), len(steps))
        shown = "\n".join(f"{number}) {steps[place]}" for number, place in enumerate(order, 1))
        answer = [order.index(place) + 1 for place in range(len(steps))]
        target = f"<answer>{', '.join(map(str, answer))}</answer>"
        question = f"{row.question}\n{self.ask}\n{shown}"
        return dataclasses.replace(row, id=f"{row.id}/order", question=question, answer=answer, target=target, choices=(), task="reorder", rewards=())

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        pieces = ((i, self.steps(rows[i])) for i in range(len(rows)))
        return Remade(rows, [i for i, steps in pieces if len(steps) >= self.fewest and len(set(steps)) == len(steps)], self.make)
