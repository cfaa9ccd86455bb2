"""The tokens that a reward model finds decisive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.registry import ConfigError, register
from vlrl.stages import Weight
from vlrl.types import LossInputs

if TYPE_CHECKING:
    from vlrl.run import Run


@register("oreal")
@dataclass(frozen=True)
class DecisiveTokens(Weight):
    """w_t = clip((p_t - threshold) / (1 - threshold), 0, 1), p_t = sigmoid of the mean logit of tokens 1..t; where A < 0 with 1 - p_t for p_t.

    Logits are field `token_score`, whose mean over a rollout learns its outcome. The first `warmup` steps weigh nothing: only the scorer learns.
    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3; running mean, threshold 0.5 and the frozen steps (10 of 90) as in the released code.
    """

    threshold: float = 0.5
    warmup: int = 10
    needs = ("token_score",)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if not any(callback.name == "critic" for callback in run.callbacks.values()):
            raise ConfigError("weights: oreal needs a scorer that learns; add callbacks: {critic: {name: critic, objective: outcome}}")

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> Tensor:
        if self.run is not None and self.run.phase_step < self.warmup:
            return torch.zeros_like(x.mask_BT)
        count_BT = x.mask_BT.cumsum(-1).clamp(min=1)
        right_BT = ((x["token_score"].detach() * x.mask_BT).cumsum(-1) / count_BT).sigmoid()
        speaks_BT = torch.where(x.advantage_BT < 0, 1 - right_BT, right_BT)
        return ((speaks_BT - self.threshold) / (1 - self.threshold)).clamp(0, 1)
