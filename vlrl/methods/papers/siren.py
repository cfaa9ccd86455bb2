"""Entropy of the nucleus.

Entropy anchored where it began, at the tokens that matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vlrl.registry import register
from vlrl.stages import AuxTensor, LossTerm
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("siren.nucleus_entropy")
@dataclass(frozen=True, kw_only=True)
class SirenNucleusEntropy(AuxTensor):
    """Entropy (nats) of the distribution renormalised on its nucleus: the smallest set of likeliest tokens whose probability reaches `top_p`.

    Paper: Jiang et al. 2025 (SIREN), arXiv:2509.25133, sec. 4.1.  Shapes: (N, V) to (N,), with gradient; which tokens are in has none.
    Edge: top_p 1 is the plain entropy; a nucleus of one token has entropy 0.
    """

    top_p: float = 0.8
    in_forward = True

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        falling_NV = logits_NV.log_softmax(-1).sort(-1, descending=True).values
        p_NV = falling_NV.detach().exp()
        inside_NV = p_NV.cumsum(-1) - p_NV < self.top_p
        kept_NV = falling_NV.masked_fill(~inside_NV, float("-inf")).log_softmax(-1)
        return -(kept_NV.exp() * kept_NV.masked_fill(~inside_NV, 0.0)).sum(-1)


def above_quantile(values_BT: torch.Tensor, mask_BT: torch.Tensor, q: float) -> torch.Tensor:
    """(B, T) bool: which masked values lie above their row's q-quantile (between values, by the line through them)."""
    known_BT = values_BT.detach().masked_fill(mask_BT <= 0, float("nan"))
    return known_BT > torch.nanquantile(known_BT, q, dim=-1, keepdim=True)


@register("siren")
@dataclass(frozen=True, kw_only=True)
class Siren(LossTerm):
    """(H_mean - anchor)^2: H_mean averages, over rollouts, each rollout's mean nucleus entropy (nats) of the tokens above its (1 - share) quantile.

    `scope` "batch" averages over the rollouts of a micro-batch, as the released code does; "rollout" takes each by itself, which does not depend on
    the split into micro-batches and adds the rollouts' variance. `anchor` 0 takes the mean over the first step, that is, the policy's entropy
    before training (the released code is told it); until then there is no loss.
    Paper: Jiang et al. 2025, arXiv:2509.25133, sec. 4.2-4.3; released script: coefficient 0.005, quantile 0.8.  Needs field `nucleus_entropy`.
    Edge: a rollout whose entropies are all alike has no peaks and counts 0.  The loss is per sequence.
    """

    coef: float = 0.005
    share: float = 0.2
    anchor: float = 0.0
    scope: Literal["batch", "rollout"] = "batch"
    needs = ("siren.nucleus_entropy",)
    state: dict[str, float] = field(init=False, default_factory=lambda: {"total": 0.0, "count": 0.0}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> PerToken:
        peaks_BT = above_quantile(x["siren.nucleus_entropy"], x.mask_BT, 1 - self.share).to(x.logp_BT)
        mean_B = (x["siren.nucleus_entropy"] * peaks_BT).sum(-1) / peaks_BT.sum(-1).clamp(min=1)
        anchor = self.anchor or self.state.get("anchor")
        if anchor is None:
            self.state["total"] += mean_B.sum().item()
            self.state["count"] += len(mean_B)
            return PerToken(mean_B * 0.0, {"peak_entropy": mean_B.detach()})
        level_B = mean_B.mean().expand(len(mean_B)) if self.scope == "batch" else mean_B
        return PerToken((level_B - anchor).square(), {"peak_entropy": mean_B.detach()})

    def metrics(self) -> dict[str, float]:
        if not self.anchor and "anchor" not in self.state:  # called once per step on every rank
            anchor = self.run.mean(self.state["total"], self.state["count"])
            if anchor > 0:
                self.state["anchor"] = anchor
        return {"siren/anchor": self.anchor or self.state.get("anchor", 0.0)}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.clear()
        self.state.update(state)
