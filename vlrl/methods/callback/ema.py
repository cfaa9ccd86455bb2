"""A slowly moving average of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group


@register("ema")
@dataclass(frozen=True, kw_only=True)
class EMA(Callback):
    """theta_ema <- decay theta_ema + (1 - decay) theta, after every step, over the trained weights; the policy itself is not changed.

    Paper: Polyak and Juditsky 1992; as a training device arXiv:1703.01780, eq. 1. `swap_at_end` puts the average into the policy after the
    last step of the phase, so that the final evaluation and checkpoint are of the average. Edge: the average starts as the weights after the
    first step. Raises ConfigError for weights spread over ranks. Shapes: as the weights, float32. It survives a restart.
    """

    decay: float = 0.99
    swap_at_end: bool = True
    average: dict[str, torch.Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay}")

    def check(self, run: Any) -> None:
        if self.swap_at_end and run.settings.steps < 1:
            raise ConfigError("callbacks.ema: swap_at_end needs at least one step")

    def setup(self, run: Any) -> None:
        if run.spread:
            raise ConfigError(
                "callbacks: ema averages whole weights, and FSDP and ZeRO-3 spread them over ranks; use DDP or ZeRO-2, or drop the callback"
            )

    @torch.no_grad()
    def __call__(self, run: Any, groups: Sequence[Group]) -> dict[str, float]:
        trained = {name: p for name, p in run.policy.model.named_parameters() if p.requires_grad}
        for name, parameter in trained.items():
            now = parameter.detach().float()
            self.average[name] = now.clone() if name not in self.average else self.average[name].to(now.device).lerp_(now, 1 - self.decay)
        far = sum(float((self.average[name] - p.float()).square().sum()) for name, p in trained.items()) ** 0.5
        if self.swap_at_end and run.phase_step + 1 >= run.settings.steps:
            for name, parameter in trained.items():
                parameter.copy_(self.average[name])
            run.engine.sync(run.policy)
        return {"ema/distance": far}

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.clear()
        self.average.update(state["average"])
