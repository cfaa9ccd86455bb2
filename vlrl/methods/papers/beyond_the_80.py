"""Only the tokens where the policy hesitates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vlrl.methods.common.groups import Scope, top_share
from vlrl.registry import register
from vlrl.stages import TokenWeight
from vlrl.types import LossInputs


@register("beyond_the_80")
@dataclass(frozen=True)
class BeyondThe80(TokenWeight):
    """1 / share on the `share` of tokens of highest entropy, 0 on the others; `side` "bottom" (the paper's ablation) takes the lowest instead.

    1 / share makes a mean over all tokens one over those that are kept.
    Paper: Wang et al. 2025 (Beyond the 80/20 rule), arXiv:2506.01939, eq. 5 (share 0.2).  Ranked within each group by default, so that the split
    into micro-batches does not matter; the released code ranks within a micro-batch (`scope` "batch"). Edge: ties with the last are kept too.
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
