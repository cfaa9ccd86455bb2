"""Rows by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.select.basic import Chosen
from vlrl.registry import ConfigError, register
from vlrl.stages import Select
from vlrl.types import Row


@register("listed")
@dataclass(frozen=True)
class Listed(Select):
    """The rows whose id is one of `ids`, in their own order. `vlrl data select` writes such a list from a run's rollouts.

    vlrl original. Edge: no row of a source is listed: an error that shows an id of each side.
    """

    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.ids:
            raise ConfigError("select: listed has no ids; `vlrl data select RUN -o chosen.yaml` writes them")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        wanted = set(self.ids)
        numbers = [i for i in range(len(rows)) if rows[i].id in wanted]
        if len(rows) and not numbers:
            raise ConfigError(f"select: none of the {len(wanted)} listed ids ({self.ids[0]!r}, ...) is a row here ({rows[0].id!r}, ...); "
                              "list rows of this source, or take the source out with `null`")  # fmt: skip
        return Chosen(rows, numbers)
