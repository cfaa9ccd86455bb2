"""Advantages helped by the rank of hidden states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from vlrl.methods.advantage.grpo import GRPO, mean
from vlrl.registry import register
from vlrl.types import Group


def effective_rank(hidden_TH: torch.Tensor) -> float:
    """exp of the entropy of the normalised singular values; 1 for a single state."""
    values = torch.linalg.svdvals(hidden_TH.double())
    p = values / values.sum().clamp(min=1e-12)
    return float(torch.exp(-(p * p.clamp(min=1e-12).log()).sum()))


def rank_moments(hidden_TH: torch.Tensor, stride: int) -> tuple[float, float, float]:
    """(effective rank, mean first difference, mean second difference) over prefixes growing by `stride` tokens."""
    ends = [*range(stride, len(hidden_TH), stride), len(hidden_TH)]
    ranks = [effective_rank(hidden_TH[:end]) for end in ends]
    first = [b - a for a, b in pairwise(ranks)]
    second = [b - a for a, b in pairwise(first)]
    return ranks[-1], mean(first), mean(second)


@register("verl_rank")
@dataclass(frozen=True)
class RankShaped(GRPO):
    """A'_i = A_i + min(relu(phi_i), |A_i| / kappa),  phi = w dev(ER) + (1 - w) dev(ERV),  w = sigmoid(gain * dev(ERA)).

    ER is the effective rank of the rollout's hidden states, ERV and ERA the mean first and second differences of it over growing prefixes;
    dev(x) = (x - m) / (|m| + 1e-6) with m an exponential moving average over rollouts (factor `ema`).
    Paper: Huang et al. 2025 (VERL), arXiv:2509.23808, eq. 5-9; stride 40, ema 0.3, kappa 2 in the released code.  Deviates: the profiles are the
    two deviations themselves, tanh-bounded. Edge: A = 0 stays 0: the help is bounded by |A|; a first rollout deviates by nothing.
    """

    stride: int = 40
    kappa: float = 2.0
    gain: float = 1.0
    ema: float = 0.3
    needs = ("hidden",)
    means: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def deviations(self, values: tuple[float, float, float]) -> list[float]:
        """How far each is from its moving average, which then takes it in."""
        out = []
        for name, value in zip(("er", "erv", "era"), values):
            centre = self.means.get(name, value)
            out.append(math.tanh((value - centre) / (abs(centre) + 1e-6)))
            self.means[name] = (1 - self.ema) * centre + self.ema * value
        return out

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group, row in zip(groups, super().__call__(groups)):
            shaped = []
            for a, rollout in zip(row, group):
                er, erv, era = self.deviations(rank_moments(torch.tensor(rollout.signals["hidden"]), self.stride))
                w = 1 / (1 + math.exp(-self.gain * era))
                shaped.append(a + min(max(w * er + (1 - w) * erv, 0.0), abs(a) / self.kappa))
            result.append(shaped)
        return result

    def state_dict(self) -> dict[str, Any]:
        return dict(self.means)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means.clear()
        self.means.update(state)
