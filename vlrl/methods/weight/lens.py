"""How much rollouts count that a purified prompt helped to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlrl.registry import ConfigError, register
from vlrl.stages import Weight
from vlrl.types import LossInputs

if TYPE_CHECKING:
    from vlrl.run import Run


@register("lens")
@dataclass(frozen=True)
class SuccessRate(Weight):
    """w = a for right rollouts of the prompt as it is, 1 - a for the others, in groups into which strategy `lens` put purified ones; else 1.

    a is the prompt's success rate. Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2.2 (sample reweighting), as in published notes on it.
    """

    def check(self, run: Run) -> None:
        if run.strategy.name != "lens":
            raise ConfigError(f"weights: lens reads what strategy {run.strategy.name!r} does not note; use strategy: {{name: lens}}")

    def __call__(self, x: LossInputs) -> Tensor:
        return torch.tensor([[rollout.info.get("crpo", 1.0)] for rollout in x.batch.rollouts], device=x.logp_BT.device, dtype=x.logp_BT.dtype)
