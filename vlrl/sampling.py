"""How a completion is drawn. No torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """How one completion is drawn. `temperature` may be a tuple of (from_position, value) steps. 0 means greedy.

    `top_k` 0, `top_p` 1 and `min_p` 0 switch the filter off. `stop` strings end a completion (and stay in its text).
    """

    temperature: float | tuple[tuple[int, float], ...] = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 64
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    bad_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    processors: tuple[Any, ...] = ()  # callables (ids so far, logits_V) -> logits_V
    guided: Mapping[str, Any] | None = None  # {"choice": [...]}, {"regex": ...} or {"json": schema}

    def temperature_at(self, position: int) -> float:
        """The temperature of the completion token at `position` (0-based)."""
        if isinstance(self.temperature, (int, float)):
            return float(self.temperature)
        value = self.temperature[0][1]
        for start, step_value in self.temperature:
            if position >= start:
                value = step_value
        return float(value)
