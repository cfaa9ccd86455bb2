"""SIREN: selective entropy regularisation, towards the initial entropy, over the nucleus of the distribution
and the tokens of highest entropy.

    siren.nucleus_entropy   auxiliary tensor
    siren                   loss term

Paper: Jiang et al. 2025 (SIREN), arXiv:2509.25133, with released code and script.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.contexts import StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AuxTensor, LossTerm, State
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("siren.nucleus_entropy")
@dataclass(frozen=True, kw_only=True)
class SirenNucleusEntropy(AuxTensor):
    """SIREN's nucleus entropy (nats): that of the distribution renormalised on the likeliest tokens, up to
    cumulative probability `top_p`.

    Paper: Jiang et al. 2025 (SIREN), arXiv:2509.25133, sec. 4.1; released code: Linn3a/siren at fa59a8d,
    verl/verl/workers/actor/dp_actor.py:50-87, of the 10,000 likeliest tokens. Shapes: (N, V) to (N,), with
    gradient, except through the choice of the tokens. Edge: top_p 1 is the plain entropy; a nucleus of one
    token, or of none, has entropy 0.

    Attributes:
        crossing: true: the smallest set with probability >= `top_p`, as in the paper; false: without the
            token that crosses `top_p`, as in the released code.
    """

    top_p: float = 0.8
    crossing: bool = False
    in_forward = True

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        falling_NV = logits_NV.log_softmax(-1).sort(-1, descending=True).values
        p_NV = falling_NV.detach().exp()
        reached_NV = p_NV.cumsum(-1)
        if self.crossing or self.top_p == 1:
            inside_NV = (reached_NV - p_NV < self.top_p) & (p_NV > 0)
        else:
            inside_NV = reached_NV < self.top_p
            inside_NV[..., 0] = True  # alone it has the entropy 0 of the empty set, without its NaN
        kept_NV = falling_NV.masked_fill(~inside_NV, float("-inf")).log_softmax(-1)
        return -(kept_NV.exp() * kept_NV.masked_fill(~inside_NV, 0.0)).sum(-1)


@dataclass
class SirenState(State):
    """`anchor` (nats) after the first step; until then `total` and `count` of the rollouts' peak entropies on
    this rank."""

    total: float = 0.0
    count: float = 0.0
    anchor: float | None = None


@register("siren")
@dataclass(frozen=True, kw_only=True)
class Siren(LossTerm):
    """SIREN's entropy term: (H_mean - anchor)^2, H_mean the mean over rollouts of their peak entropies.

    A rollout's peak entropy is the mean nucleus entropy (nats) of its tokens above its (1 - share) quantile.
    Paper: Jiang et al. 2025, arXiv:2509.25133, sec. 4.2-4.3; released script: coefficient 0.005, quantile
    0.8. Edge: a rollout whose entropies are all equal has no token above the quantile and counts as 0. The
    loss is per sequence.

    Attributes:
        scope: "batch" averages over the rollouts of a micro-batch, as the released code does; "rollout" takes
            each by itself, which does not depend on the split into micro-batches and adds the rollouts'
            variance.
        anchor: 0 takes the mean over the first step, that is, the policy's entropy before training (the
            released code reads it from its config); during that step there is no loss.
    """

    state_class = SirenState
    coef: float = 0.005
    share: float = 0.2
    anchor: float = 0.0
    scope: Literal["batch", "rollout"] = "batch"
    needs = ("siren.nucleus_entropy",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        peaks_BT = above_quantile(x["siren.nucleus_entropy"], x.mask_BT, 1 - self.share).to(x.logp_BT)
        mean_B = (x["siren.nucleus_entropy"] * peaks_BT).sum(-1) / peaks_BT.sum(-1).clamp(min=1)
        anchor = self.anchor or self.state.anchor
        if anchor is None:
            self.state.total += mean_B.sum().item()
            self.state.count += len(mean_B)
            return UnreducedLoss(mean_B * 0.0, {"peak_entropy": mean_B.detach()})
        level_B = mean_B.mean().expand(len(mean_B)) if self.scope == "batch" else mean_B
        return UnreducedLoss((level_B - anchor).square(), {"peak_entropy": mean_B.detach()})

    def end_step(self, run: StepContext) -> None:
        if not self.anchor and self.state.anchor is None:
            anchor = run.mean(self.state.total, self.state.count)
            if anchor > 0:
                self.state.anchor = anchor

    def metrics(self) -> dict[str, float]:
        """The anchor in nats; 0 before there is one."""
        return {"siren/anchor": self.anchor or self.state.anchor or 0.0}


def above_quantile(values_BT: Tensor, mask_BT: Tensor, q: float) -> Tensor:
    """(B, T) bool: masked values above their row's q-quantile (linear interpolation between values)."""
    known_BT = values_BT.detach().masked_fill(mask_BT <= 0, float("nan"))
    return known_BT > torch.nanquantile(known_BT, q, dim=-1, keepdim=True)
