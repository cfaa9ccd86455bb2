"""Rows with attempts to judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.callback.judgerlvr import KEY
from vlrl.methods.sampler.shuffle import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.run import Run


@register("judged")
@dataclass(frozen=True)
class Judged(Shuffle):
    """As `shuffle`, over the rows of which callback `keep_candidates` kept attempts.

    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468, first stage. Edge: raises ConfigError where nothing was kept.
    """

    def setup(self, run: Run) -> None:
        super().setup(run)
        self._state["run"] = run

    def __call__(self, n: int) -> list[Row]:
        if not any(KEY in memory for memory in self._state["run"].history.values()):
            raise ConfigError(
                "sampler 'judged': no attempts were kept; give an earlier phase callbacks: {keep: {name: keep_candidates}} and more steps"
            )
        return super().__call__(n)

    def _try(self, position: int) -> Row | None:
        row = super()._try(position)
        return row if row is not None and KEY in self._state["run"].history.get(row.id, {}) else None
