"""A reference that follows the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("reference_ema")
@dataclass(frozen=True)
class ReferenceEMA(Callback):
    """theta_ref <- decay theta_ref + (1 - decay) theta after every step: the KL is to where the policy was of late.

    Paper: Hou et al. 2025 (T1), arXiv:2501.11651, from published notes on it (an exponential moving average as the reference); `decay` is ours. The
    average is kept in float32, so that a reference in bfloat16 does not stand still. Raises ConfigError where nothing reads the reference, and for
    adapters and weights spread over ranks, which have no copy of their own to move. State: the average.
    """

    decay: float = 0.99
    average: dict[str, torch.Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1)")

    def check(self, run: Run) -> None:
        if "ref_logp" not in run.fields:
            raise ConfigError(
                "callbacks: reference_ema moves the reference, but nothing reads it; add a term: {kl: {name: kl}}, or drop the callback"
            )

    def setup(self, run: Run) -> None:
        if run.sharded or hasattr(run.policy.model, "disable_adapter"):
            raise ConfigError(
                "callbacks: reference_ema moves a copy of all weights, which neither adapters nor weights spread over ranks have; "
                "use reference_reset, or train all weights on each rank"
            )

    @torch.no_grad()
    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        reference = run.policy.reference_state()["weights"]
        now, far = run.policy.model.state_dict(), 0.0
        for name, held in reference.items():
            if held.is_floating_point():
                average = self.average.setdefault(name, held.float().clone()).to(held.device)
                self.average[name] = average.lerp_(now[name].float(), 1 - self.decay)
                held.copy_(average)
                far += float((now[name].float() - average).square().sum())
        return {"distance": far**0.5}

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.clear()
        self.average.update(state["average"])
