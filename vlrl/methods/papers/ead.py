"""EAD: exploratory annealed decoding, a temperature that is high at the start of an answer and falls towards
its end.

`ead` is a sampling policy.

Paper: Yang et al. 2025 (EAD), arXiv:2510.05251; checked against annealed_sampling.py of the release, mode
"negexp", and its script: start 1.2, end 0.1, decay 25, grow 5, max_decay 40000, warm 10, unit 20 tokens.
The release takes log-probs at temperature 1 (`logp_temperature: 1.0`), and the paper corrects for the
difference by truncated importance sampling (`tis`). Deviates: temperatures are rounded to hundredths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from vlrl.methods.core.sampling import Plain
from vlrl.plugins.registry import register
from vlrl.types import Prompt, Sampling

GRID = 100  # temperatures are whole hundredths


@register("ead")
@dataclass(frozen=True)
class Ead(Plain):
    """EAD's annealing schedule: the temperature of the token at position t >= warm in step s = 1, 2, ... of
    the phase.

        tau_t = max(1 + start - exp(t / (unit d)), end),  d = min(decay + grow s, max_decay)

    Before position `warm` it is `temperature`. Edge: without a run (before `setup`) s is 1. Units: tokens.
    """

    start: float = 1.2
    end: float = 0.1
    decay: float = 25.0
    grow: float = 5.0
    max_decay: float = 40_000.0
    unit: float = 20.0
    warm: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.temperature, (int, float)) or self.temperature <= 0:
            raise ValueError(
                f"temperature={self.temperature} is that of the first `warm` tokens: one number above 0"
            )
        if not 0 < self.end <= self.start:
            raise ValueError(f"start={self.start} and end={self.end}: 0 < end <= start is needed")
        if min(self.decay, self.unit, self.max_decay) <= 0 or self.grow < 0 or self.warm < 0:
            raise ValueError(
                f"decay={self.decay}, unit={self.unit}, max_decay={self.max_decay} must be above 0, "
                f"grow={self.grow} and warm={self.warm} not below"
            )

    @property
    def span(self) -> float:
        """unit d of the current step, in tokens."""
        step = self.run.phase_step + 1 if self.is_set_up else 1
        return self.unit * min(self.decay + self.grow * step, self.max_decay)

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        plain = super().__call__(prompt, attempt)
        return replace(
            plain,
            temperature=annealing(
                self.start, self.end, self.span, self.warm, plain.temperature_at(0), self.max_tokens
            ),
        )

    def metrics(self) -> dict[str, float]:
        return {"ead/span": self.span}


@lru_cache(maxsize=64)
def annealing(
    start: float, end: float, span: float, warm: int, first: float, longest: int
) -> tuple[tuple[int, float], ...]:
    """((position, temperature), ...) where it changes: `first` before `warm`, then max(1 + start - e^(t /
    span), end), in hundredths."""
    steps = [(0, first)] if warm else []
    for t in range(warm, longest):
        value = round(GRID * max(1 + start - math.exp(min(t / span, 50.0)), end)) / GRID
        if not steps or value != steps[-1][1]:
            steps.append((t, value))
        if value <= end:
            break
    return tuple(steps)
