"""Be moved by the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vlrl.methods._groups import top_share
from vlrl.methods.term.kl import ESTIMATORS, clamp
from vlrl.registry import ConfigError, register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run


@register("perception")
@dataclass(frozen=True, kw_only=True)
class Perception(Term):
    """L = -KL(pi(. | picture) || pi(. | blackened picture)), estimated by k3 on the sampled tokens (nats): maximised.

    `limit` bounds the estimate from above (0: no), `share` below 1 keeps only a rollout's most picture-dependent tokens.
    Paper: Wang et al. 2025 (PAPO), arXiv:2507.06448, eq. 2 (gamma 0.01-0.02); log-ratios are held in +-20 and the estimate in +-10 as in the
    released code.
    The paper's double entropy loss is term `entropy` with a negative `coef` (0.03): of its two parts only the unmasked one has a gradient, there
    as here.
    """

    coef: float = 0.01
    limit: float = 0.0
    share: float = 1.0
    needs = ("blind_logp",)

    def check(self, run: Run) -> None:
        if not run.family.sees:
            raise ConfigError(
                f"terms: perception compares with blackened pictures, which policy {run.family.name!r} does not see; use a vision family"
            )

    def __call__(self, x: LossInputs) -> PerToken:
        log_r_BT = clamp((x["blind_logp"] - x.logp_BT) * x.mask_BT, 20.0)
        kl_BT = clamp(ESTIMATORS["k3"](log_r_BT), 10.0)
        metrics = {"kl_perception": kl_BT.detach()}
        if self.share < 1:
            kl_BT = torch.where(top_share(kl_BT, x.mask_BT, x.group_B, self.share, "rollout"), kl_BT, 0.0)
        return PerToken(-(kl_BT.clamp(max=self.limit) if self.limit else kl_BT), metrics)
