"""A penalty that begins before the length limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods._limits import completion_limit
from vlrl.methods.shape._length import check_alone
from vlrl.registry import ConfigError, register
from vlrl.stages import Shape
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("soft_overlong")
@dataclass(frozen=True)
class SoftOverlong(Shape):
    """r + factor * p(n):  p = 0 for n <= limit - buffer,  -(n - (limit - buffer)) / buffer up to the limit,  -1 beyond. n in tokens.

    `limit` 0 takes the longest completion that may be sampled; `buffer` before it the penalty begins: tokens, or below 1 a share of the limit.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13 (limit 20480, buffer 4096: a share of 0.2).
    """

    buffer: float = 0.2
    limit: int = 0
    factor: float = 1.0
    punishes_length = True
    resolved: int = field(init=False, default=0, repr=False, compare=False)

    def check(self, run: Run) -> None:
        check_alone(run)
        limit = completion_limit(run, self.limit, "shape.soft_overlong.limit")
        if not 0 < self.buffer <= limit:
            raise ConfigError(
                f"shape.soft_overlong.buffer={self.buffer} must be above 0 (a share below 1, else tokens) and at most {limit}, the longest completion"
            )

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "resolved", completion_limit(run, self.limit, "shape.soft_overlong.limit"))

    def __call__(self, group: Group) -> list[float]:
        limit = self.limit or self.resolved
        buffer = self.buffer * limit if self.buffer < 1 else self.buffer
        return [r.reward - self.factor * min(max((len(r) - limit + buffer) / buffer, 0.0), 1.0) for r in group]
