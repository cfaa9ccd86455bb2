"""Credit by how far a step brought the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Credit
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("spae")
@dataclass(frozen=True)
class SPAE(Credit):
    """A_{i,t} = A_i f(Phi before the step) + xi (Phi after the step - Phi before it), Phi the step potentials of strategy `spae`.

    f = 1 while the step began below `saturated`, else `after` for A > 0 and 1 for A <= 0: checking what is solved earns less.
    Paper: Wu et al. 2026, arXiv:2601.03823, eq. 6-8 (saturation 0.9).  Deviates: f, g and xi are vlrl's reading of the text.
    Edge: the potential before the first step is 0; the tokens after the last boundary have no potential of their own and get A_i f.
    """

    xi: float = 0.5
    saturated: float = 0.9
    after: float = 0.5

    def check(self, run: Run) -> None:
        if run.strategy.name != "spae":
            raise ConfigError(f"credit spae reads step potentials, which strategy {run.strategy.name!r} does not make; use strategy: {{name: spae}}")

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            values, before, start = [a] * len(rollout), 0.0, 0
            for end, phi in [*rollout.info["steps"], (len(rollout), None)]:
                factor = self.after if before > self.saturated and a > 0 else 1.0
                gain = 0.0 if phi is None else self.xi * (phi - before)
                values[start:end] = [a * factor + gain] * (end - start)
                before, start = before if phi is None else phi, end
            result.append(values)
        return result
