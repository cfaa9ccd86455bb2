"""The tokens that a reward model finds decisive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.methods._groups import top_share
from vlrl.registry import ConfigError, register
from vlrl.stages import Weight
from vlrl.types import LossInputs

if TYPE_CHECKING:
    from vlrl.run import Run


@register("oreal")
@dataclass(frozen=True)
class DecisiveTokens(Weight):
    """1 / share on the `share` of a rollout's tokens whose score speaks most for its outcome (score if A > 0, else 1 - score), 0 elsewhere.

    Scores are field `token_score`; the first `warmup` steps weigh all tokens alike, while only the scorer has something to learn.
    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3; top 25% and 10 steps in the released config.  Deviates: 1 / share keeps the size of
    the loss;
    the policy is not frozen during the warm-up.
    """

    share: float = 0.25
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
            return torch.ones_like(x.logp_BT)
        speaks_BT = torch.where(x.advantage_BT > 0, x["token_score"], 1 - x["token_score"])
        return top_share(speaks_BT, x.mask_BT, x.group_B, self.share, "rollout").to(x.logp_BT) / self.share
