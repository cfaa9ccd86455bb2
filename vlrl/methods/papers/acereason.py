"""AceReason-Nemotron: completion limits that grow in stages.

`acereason` is a sampling policy; the rest of the paper (strictly on-policy GRPO, one domain after the other) is configs/methods/acereason.yaml.

Paper: Chen et al. 2025 (AceReason-Nemotron), arXiv:2505.16400, sec. 3: 8K, 16K, 24K and 32K tokens, that is shares 1/4 to 1.
Deviates: the paper's stages have lengths of their own, here they are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vlrl.methods.core.sampling import Plain
from vlrl.registry import register
from vlrl.types import Prompt, Sampling


@register("acereason")
@dataclass(frozen=True)
class Acereason(Plain):
    """AceReason's length extension: `plain` sampling with a completion limit per stage.

        limit = ceil(shares[i] * max_tokens),  i = floor(k * step / steps) for the phase's k = len(shares) equal stages

    `shares` are in (0, 1], one per stage. Edge: without a run (before `setup`) the limit is `max_tokens`. Units: tokens.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"shares={self.shares} must be numbers in (0, 1], one per stage")

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        return replace(super().__call__(prompt, attempt), max_tokens=self.limit())

    def limit(self) -> int:
        """The longest completion of the current stage, in tokens."""
        if not self.is_set_up:
            return self.max_tokens
        stage = min(len(self.shares) * self.run.phase_step // self.run.settings.steps, len(self.shares) - 1)
        return max(math.ceil(self.shares[stage] * self.max_tokens - 1e-9), self.min_tokens, 1)

    def metrics(self) -> dict[str, float]:
        return {"acereason/max_tokens": float(self.limit())}
