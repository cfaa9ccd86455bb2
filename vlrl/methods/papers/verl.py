"""VERL: advantages shaped by how the effective rank of the hidden states grows along a response (ER, its
velocity ERV, its acceleration ERA).

`verl` is an advantage estimator. Paper: Huang et al. 2025 (VERL), arXiv:2509.23808, with released script and
code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vlrl.functional.exact import mean
from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import State
from vlrl.services.lazy import torch
from vlrl.types import Group

NAMES = ("er", "erv", "era")

RANK_MOMENTS: Annotation[tuple[float, float, float]] = Annotation(
    "verl.rank_moments",
    (tuple, list),
    hint="advantage: {name: verl}",
    doc="(ER, ERV, ERA) of the rollout's hidden states",
)


def effective_rank(hidden_TH: torch.Tensor) -> float:
    """exp of the entropy of the normalised singular values of the centred states; 0 for fewer than two."""
    if len(hidden_TH) < 2:
        return 0.0
    values = torch.linalg.svdvals((hidden_TH - hidden_TH.mean(0)).double())
    p = values / values.sum().clamp(min=1e-12)
    return float(torch.exp(-(p * p.clamp(min=1e-12).log()).sum()))


def rank_moments(hidden_TH: torch.Tensor, stride: int, last: int = 512) -> tuple[float, float, float]:
    """(ER, ERV, ERA): the rank m of all tokens; the mean of d_j = m_j - mean(m_1 .. m_j-1) over prefixes of
    1 + j `stride` of the `last` tokens; the mean of d_j - d_j-1. ERV is 0 with fewer than two prefixes, ERA
    with fewer than three."""
    end_TH = hidden_TH[-last:]
    ranks = [effective_rank(end_TH[: t + 1]) for t in range(stride, len(end_TH), stride)]
    first = [ranks[j] - mean(ranks[:j]) for j in range(1, len(ranks))]
    second = [b - a for a, b in pairwise(first)]
    return effective_rank(hidden_TH), mean(first), mean(second)


@dataclass
class VerlState(State):
    """Exponential moving averages of ER, ERV and ERA, from 0, and the means of the last step, by name; empty
    before the first step."""

    means: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)


@register("verl")
@dataclass(frozen=True)
class Verl(GRPO):
    """VERL: A'_i = A_i + min(relu(phi_i), |A_i| / kappa),  phi = w tanh(dev ER) + (1 - w) tanh(dev ERV),  w =
    sigmoid(gain * dev ERA).

        dev(x) = (x - m) / (|m| + 1e-8), clamped to +-5;   m <- (1 - ema) m + ema * mean

    ER, ERV and ERA are those of `rank_moments` over the rollout's last-layer states. Paper: Huang et al. 2025
    (VERL), arXiv:2509.23808, eq. 5-9; stride 40, gain 2, ema 0.3, kappa 2 in the released script, whose code
    fixes the rest. As there the averages start at 0 and know the steps before the last one, so that the
    second step's deviations are 5, and the first step is plain GRPO. Deviates: the bonus is the whole
    rollout's (released: at the last token only). Edge: A = 0 stays 0. Hidden states stay on their rank.
    """

    state_class = VerlState
    stride: int = 40
    kappa: float = 2.0
    gain: float = 2.0
    ema: float = 0.3
    needs = ("hidden",)
    provides = (RANK_MOMENTS,)

    def prepare(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for rollout in group:
                hidden = [
                    state
                    for state, trained in zip(rollout.signals["hidden"], rollout.trained_mask)
                    if trained
                ]
                RANK_MOMENTS.set(rollout, rank_moments(torch.tensor(hidden), self.stride))

    def deviation(self, name: str, value: float) -> float:
        """The relative deviation from the moving average, clamped to +-5."""
        average = self.state.means.get(name, 0.0)
        return min(max((value - average) / (abs(average) + 1e-8), -5.0), 5.0)

    def phi(self, moments: Sequence[float]) -> float:
        """phi of a rollout."""
        er, erv, era = (self.deviation(name, value) for name, value in zip(NAMES, moments))
        w = 1 / (1 + math.exp(-self.gain * era))
        return w * math.tanh(er) + (1 - w) * math.tanh(erv)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result, means = super().__call__(groups), self.state.means
        if self.state.last:
            for group, row in zip(groups, result):
                row[:] = [
                    a + min(max(self.phi(RANK_MOMENTS[r]), 0.0), abs(a) / self.kappa)
                    for a, r in zip(row, group)
                ]
        for name, value in self.state.last.items():
            means[name] = (1 - self.ema) * means.get(name, 0.0) + self.ema * value
        moments = [RANK_MOMENTS[rollout] for group in groups for rollout in group]
        self.state.last = {name: mean([values[k] for values in moments]) for k, name in enumerate(NAMES)}
        return result
