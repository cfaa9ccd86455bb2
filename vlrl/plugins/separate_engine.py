"""The stage of engines that have a model of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.plugins.stages import Engine

if TYPE_CHECKING:
    from vlrl.types import Prompt


class SeparateEngine(Engine):
    """An engine whose model is not the trainer's: they are compared (`EngineCheck`)."""

    dtype: str
    gap_limit: float | None
    correction: bool

    def rounds(self, dtype: str) -> bool:
        """Whether rounding alone parts it from a trainer of this type."""
        return {dtype, self.dtype or dtype} != {"float32"}

    def is_off_policy(self, dtype: str, loop: str) -> bool:
        """Whether its samples are to be corrected: they come from another distribution than the trainer's, by
        rounding or by age."""
        return self.correction and (self.rounds(dtype) or loop != "synchronous")

    @abstractmethod
    def seen(self, prompt: Prompt, ids: Sequence[int]) -> tuple[list[int], list[float]]:
        """The prompt's ids, media expanded, and the log-probs of the ids after it (nats, temperature 1)."""
