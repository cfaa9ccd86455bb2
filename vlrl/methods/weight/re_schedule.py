"""Prompts with a simple tree of answers count more at first, those with a hard one at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vlrl.methods.callback.re_schedule import KEY
from vlrl.registry import ConfigError, register
from vlrl.stages import Weight
from vlrl.types import LossInputs

if TYPE_CHECKING:
    from vlrl.run import Run


def ranks(scores: dict[str, float]) -> dict[str, float]:
    """0 for the highest score to 1 for the lowest, evenly, in two decimals; of equal scores the smaller id is first."""
    ordered = sorted(scores, key=lambda row: (-scores[row], row))
    return {row: round(place / max(len(ordered) - 1, 1), 2) for place, row in enumerate(ordered)}


@register("scheduled")
@dataclass(frozen=True)
class Scheduled(Weight):
    """w = low + (high - low) ((1 - a) (1 - rank) + a rank),  a = t (linear) or 1 / (1 + e^(-k (t - 1/2))) (sigmoid), t the share of the phase done.

    rank: 0 for the prompt with the highest r-score, 1 for the lowest, 1/2 for one without.
    Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832: a curriculum from high to low r-scores as weights in the loss. Ranks as in
    add_metrics_to_dataset.py of the release, low 0.5, high 2, k 10 as in its scripts. The formula itself stands in a file that could not be read:
    how a and rank make the weight is ours. Reads what callback `r_score` kept in an earlier phase. Shapes: (B, 1).
    """

    low: float = 0.5
    high: float = 2.0
    mode: Literal["linear", "sigmoid"] = "sigmoid"
    k: float = 10.0
    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.high == 0:
            raise ConfigError(f"weights: scheduled needs 0 <= low <= high and high above 0, got {self.low} and {self.high}")

    def setup(self, run: Run) -> None:
        scores = {row: memory[KEY] for row, memory in run.history.items() if KEY in memory}
        self.state.update(run=run, ranks=ranks(scores))
        if not scores:
            run.warn("weights: scheduled finds no r-scores, so all prompts count alike; make them with callback r_score in an earlier phase")

    def alpha(self) -> float:
        """How far the schedule has gone, 0 to 1."""
        run = self.state.get("run")
        t = min(run.phase_step / max(run.settings.steps, 1), 1.0) if run is not None else 0.0
        return {"linear": t, "sigmoid": 1 / (1 + math.exp(-self.k * (t - 0.5)))}[self.mode]

    def __call__(self, x: LossInputs) -> Tensor:
        a, known = self.alpha(), self.state.get("ranks", {})
        rank_B = torch.tensor([known.get(rollout.row.id, 0.5) for rollout in x.batch.rollouts], dtype=x.logp_BT.dtype, device=x.logp_BT.device)
        return (self.low + (self.high - self.low) * ((1 - a) * (1 - rank_B) + a * rank_B))[:, None]
