"""Credit by how far each step brings the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods._tokens import check_credit, hand_over, whiten
from vlrl.methods.advantage.grpo import GroupRelative, centred, mean
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


def gains(rollout: Rollout) -> list[float]:
    """By how much each step of a rollout raised the potential; the first step counts as none."""
    values = [phi for _, phi in rollout.info.get("steps", [])]
    return [after - before for before, after in zip(values[:1] + values, values)]


@register("spae")
@dataclass(frozen=True)
class SPAE(GroupRelative):
    """A_{i,t} = (r_i - mean_G r) f + xi g for token t in step k, then mean 0 and variance 1 over all tokens of the batch.

    f = 1 - alpha (1 - exp(-n)), n the earlier steps whose potential Phi is above `saturated`; g = exp(d) - mean exp(d), d the rise Phi_k - Phi_{k-1}
    scaled to 0..1 over all steps of the batch. Potentials are strategy `spae`'s; credit `per_token` hands the result out.
    Paper: Wu et al. 2026, arXiv:2601.03823, its SPAE advantage; alpha = xi = 0.5; saturation 0.9 and no rise at the first step as in the
    released example.
    Edge: tokens after the last boundary have no rise (g = 0). No step in the batch, or all rises alike: no g.
    """

    xi: float = 0.5
    alpha: float = 0.5
    saturated: float = 0.9

    writes_tokens = True

    def check(self, run: Run) -> None:
        super().check(run)
        check_credit(run, "spae")
        if run.strategy.name != "spae":
            raise ConfigError(
                f"advantage spae reads step potentials, which strategy {run.strategy.name!r} does not make; use strategy: {{name: spae}}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rises = [rise for group in groups for rollout in group for rise in gains(rollout)]
        low, reach = min(rises, default=0.0), max(rises, default=0.0) - min(rises, default=0.0)
        centre = mean([math.exp((rise - low) / reach) for rise in rises]) if reach else 0.0
        rows = []
        for group in groups:
            for a, rollout in zip(centred(group.rewards, 1.0), group, strict=True):
                row, start, full = [], 0, 0
                shaped = [math.exp((rise - low) / reach) - centre if reach else 0.0 for rise in gains(rollout)]
                for (end, phi), g in zip([*rollout.info.get("steps", []), (len(rollout), 0.0)], [*shaped, 0.0], strict=True):
                    factor = 1 - self.alpha * (1 - math.exp(-full))
                    row += [a * factor + self.xi * g] * (end - start)
                    start, full = end, full + (phi > self.saturated)
                rows.append(row)
        whiten(rows)
        return hand_over(groups, rows)
