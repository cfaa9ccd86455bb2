"""GTR-Turbo: the merged checkpoints of the running training are a free teacher, and the policy is pulled towards it.

Paper: GTR-Turbo: Merged Checkpoint is Secretly a Free Teacher for Agentic VLM Training, arXiv:2512.13043. No released code was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from vlrl.context import RunContext
from vlrl.methods.core.callback import AverageState, ReferenceEMA
from vlrl.registry import register
from vlrl.types import Group


@dataclass
class GtrTurboState(AverageState):
    """The merged weights, and how many checkpoints they hold."""

    checkpoints: int = 1


@register("gtr_turbo")
@dataclass(frozen=True)
class GtrTurbo(ReferenceEMA):
    """GTR-Turbo's merged teacher: after every `every` steps the weights are merged into the KL reference.

        mean:  m_k = m_(k-1) + (theta - m_(k-1)) / (k + 1),   m_0 = the weights that the phase began with
        ema:   m_k = decay m_(k-1) + (1 - decay) theta

    The KL to the reference (loss term `kl`) is then the distillation from the merged model, the paper's variant with soft logits. "mean" weighs all
    checkpoints alike. Paper: arXiv:2512.13043 (merging of the run's checkpoints; SFT on the teacher's thoughts, or the reverse KL to it).
    Deviates: plain averages, where the paper merges by TIES (trimmed and sign-elected differences). Edge: until the first merge the reference is the
    initial policy. Raises ConfigError as `reference_ema` does. Logs the distance of policy and teacher, and the checkpoints. State: the merged
    weights. Memory: the reference and a float32 copy.
    """

    every: int = 1
    merge: Literal["mean", "ema"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every={self.every} must be at least 1")

    def init_state(self) -> GtrTurboState:
        return GtrTurboState()

    @torch.no_grad()
    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        state: GtrTurboState = self.state
        reference, now = run.policy.reference_state()["weights"], run.policy.model.state_dict()
        due = (run.phase_step + 1) % self.every == 0
        state.checkpoints += due
        share = 1 / state.checkpoints if self.merge == "mean" else 1 - self.decay
        squares = 0.0
        for name, weight in reference.items():
            if weight.is_floating_point():
                merged = state.average.setdefault(name, weight.float().clone()).to(weight.device)
                if due:
                    state.average[name] = merged.lerp_(now[name].float(), share)
                    weight.copy_(merged)
                squares += float((now[name].float() - merged).square().sum())
        return {"distance": squares**0.5, "checkpoints": float(state.checkpoints)}
