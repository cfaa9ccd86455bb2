"""The plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("reinforce")
@dataclass(frozen=True)
class Reinforce(Surrogate):
    """L = -A log pi: no ratio, no clip. Biased once the policy has moved away from the sampler; meant for one optimizer step per batch.

    Paper: Williams 1992, doi:10.1007/BF00992696; GPG, arXiv:2504.02546, eq. 5.
    """

    def __call__(self, x: LossInputs) -> PerToken:
        return PerToken(-x.advantage_BT * x.logp_BT, {"ratio": x.log_ratio_BT.exp().detach()})
