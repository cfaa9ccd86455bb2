"""Beyond the 80/20 rule: policy gradient on the fifth of the tokens with the highest entropy (forking
tokens).

`beyond_the_80` is a token weight.

Paper: Wang et al. 2025 (Beyond the 80/20 rule), arXiv:2506.01939, eq. 5 (share 0.2).
Deviates: tokens are ranked within each group by default, so that the result does not depend on the split into
micro-batches; the released code ranks within a micro-batch (`scope` "batch").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.methods.common.groups import Scope, top_share
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor
from vlrl.types import LossInputs


@register("beyond_the_80")
@dataclass(frozen=True)
class BeyondThe80(TokenWeight):
    """Forking tokens: weight 1 / share on the `share` of tokens with the highest entropy, 0 on the others.

    The factor 1 / share turns a mean over all tokens into a mean over those that are kept. `scope` says among
    which tokens they are ranked; `side` "bottom" (the paper's ablation) keeps those with the lowest entropy
    instead. Edge: ties with the last one are kept too. Shape: (B, T).
    """

    share: float = 0.2
    scope: Scope = "group"
    side: Literal["top", "bottom"] = "top"
    needs = ("entropy",)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]")

    def __call__(self, x: LossInputs) -> Tensor:
        values_BT = x["entropy"] if self.side == "top" else -x["entropy"]
        return top_share(values_BT, x.mask_BT, x.group_B, self.share, self.scope).to(x.logp_BT) / self.share
