"""The tokens that a reward model finds decisive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

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

    Logits are field `token_score` (a head on the policy's states) or `model_value` (a model of its own); their mean over a rollout learns its
    outcome. The first `warmup` steps weigh nothing: only the scorer learns.
    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3; running mean, threshold 0.5 and the frozen steps (10 of 90) as in the released code.
    """

    threshold: float = 0.5
    warmup: int = 10
    scores: Literal["token_score", "model_value"] = "token_score"
    run: Any = field(init=False, default=None, repr=False, compare=False)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.scores,)

    def check(self, run: Run) -> None:
        wanted = {"token_score": "critic", "model_value": "critic_model"}[self.scores]
        if not any(callback.name == wanted for callback in run.callbacks.values()):
            raise ConfigError(f"weights: oreal needs a scorer that learns; add callbacks: {{critic: {{name: {wanted}, objective: outcome}}}}")

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> Tensor:
        if self.run is not None and self.run.phase_step < self.warmup:
            return torch.zeros_like(x.mask_BT)
        count_BT = x.mask_BT.cumsum(-1).clamp(min=1)
        right_BT = ((x[self.scores].detach() * x.mask_BT).cumsum(-1) / count_BT).sigmoid()
        speaks_BT = torch.where(x.advantage_BT < 0, 1 - right_BT, right_BT)
        return ((speaks_BT - self.threshold) / (1 - self.threshold)).clamp(0, 1)
