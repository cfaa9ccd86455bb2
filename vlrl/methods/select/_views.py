"""Rows made of other rows, when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlrl.types import Row, RowView


class Remade(RowView):
    """`make(rows[numbers[i // copies]], i % copies)`: every chosen row `copies` times."""

    def __init__(self, rows: Sequence[Row], numbers: Sequence[int], make: Callable[[Row, int], Row], copies: int = 1) -> None:
        self.rows, self.numbers, self.make, self.copies = rows, numbers, make, copies

    def __len__(self) -> int:
        return len(self.numbers) * self.copies

    def at(self, index: int) -> Row:
        return self.make(self.rows[self.numbers[index // self.copies]], index % self.copies)
