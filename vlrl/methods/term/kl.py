"""KL to a reference as a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run

ESTIMATORS = {
    "k1": lambda log_r: -log_r,
    "k2": lambda log_r: log_r.square() / 2,
    "k3": lambda log_r: torch.expm1(log_r) - log_r,
}


def clamp(value: torch.Tensor, bound: float) -> torch.Tensor:
    """To [-bound, bound]; 0 leaves it."""
    return value.clamp(-bound, bound) if bound else value


@register("kl")
@dataclass(frozen=True, kw_only=True)
class KL(Term):
    """An estimate of KL(pi || ref) per token (nats), from u = log ref - log pi:  k1 = -u,  k2 = u^2 / 2,  k3 = e^u - u - 1.

    On-policy, the mean gradient of k2 is that of KL(pi || ref), that of k3 is KL(ref || pi)'s, and that of k1 is zero. `gradient`: "direct"
    differentiates the estimate as it stands (GRPO, TRL); "k2" keeps the value of `kind` with k2's gradient (verl's "+" kinds); "importance"
    multiplies by pi / pi_old, whose gradient makes k1 and k3 unbiased too (DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1).
    `clamp_log` bounds u (verl: 20), `clamp_value` the estimate (verl: 10); 0 switches them off. `ref` is the tensor compared with.
    Paper: Schulman 2020, joschu.net/blog/kl-approx.html; as a loss: Shao et al. 2024, arXiv:2402.03300, eq. 4;
    gradients: Tang and Munos 2025, arXiv:2506.09477.
    """

    kind: Literal["k1", "k2", "k3"] = "k3"
    gradient: Literal["direct", "k2", "importance"] = "direct"
    ref: str = "ref_logp"
    clamp_log: float = 0.0
    clamp_value: float = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def check(self, run: Run) -> None:
        if self.coef and self.kind == "k1" and self.gradient == "direct":
            raise ConfigError(
                "terms: kl with kind k1 and gradient direct has a gradient of mean zero, so it only adds noise; use kind k3 or k2, gradient k2 or "
                "importance, or the KL in the reward (shape kl_in_reward)"
            )
        if self.coef and any(shape.name == "kl_in_reward" for shape in run.shape.values()):
            raise ConfigError("terms: kl and shape kl_in_reward charge for the same divergence twice; drop one of them")

    def estimate(self, x: LossInputs, kind: str) -> torch.Tensor:
        """(B, T), zero outside the mask."""
        log_r_BT = clamp((x[self.ref] - x.logp_BT) * x.mask_BT, self.clamp_log)
        return clamp(ESTIMATORS[kind](log_r_BT), self.clamp_value)

    def __call__(self, x: LossInputs) -> PerToken:
        kl_BT = self.estimate(x, self.kind)
        if self.gradient == "k2":
            k2_BT = self.estimate(x, "k2")
            loss_BT = kl_BT.detach() + k2_BT - k2_BT.detach()
        elif self.gradient == "importance":
            loss_BT = x.log_ratio_BT.exp() * kl_BT
        else:
            loss_BT = kl_BT
        return PerToken(loss_BT, {"kl": kl_BT.detach()})
