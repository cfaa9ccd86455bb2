"""Longer and longer answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.core.sampling import Plain
from vlrl.registry import register
from vlrl.types import Prompt, Sampling

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("acereason")
@dataclass(frozen=True)
class Acereason(Plain):
    """As `plain`, with at most ceil(share_i * max_tokens) tokens in stage i = floor(k * step / steps) of the phase's k equal stages.

    Paper: Chen et al. 2025 (AceReason-Nemotron), arXiv:2505.16400, sec. 3: 8K, 16K, 24K and 32K tokens, that is shares 1/4 to 1.
    Deviates: the paper's stages have lengths of their own, here they are equal. Edge: before the run has begun the last stage's limit holds.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"shares={self.shares} must be numbers in (0, 1], one per stage")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def limit(self) -> int:
        """The longest completion of the present stage, in tokens."""
        if self.run is None:
            return self.max_tokens
        stage = min(len(self.shares) * self.run.phase_step // self.run.settings.steps, len(self.shares) - 1)
        return max(math.ceil(self.shares[stage] * self.max_tokens - 1e-9), self.min_tokens, 1)

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        return replace(super().__call__(prompt, attempt), max_tokens=self.limit())

    def metrics(self) -> dict[str, float]:
        return {"decode/limit": float(self.limit())}
