"""The plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run


@register("reinforce")
@dataclass(frozen=True)
class Reinforce(Surrogate):
    """L = -A log pi: no ratio, no clip. Biased once the policy has moved away from the sampler; meant for one optimizer step per batch.

    Paper: Williams 1992, doi:10.1007/BF00992696; GPG, arXiv:2504.02546, eq. 5.
    """

    def check(self, run: Run) -> None:
        steps = run.settings.minibatches * run.settings.iterations
        if steps > 1 and not run.objective.weights:
            raise ConfigError(
                f"surrogate reinforce has no ratio, and with minibatches x iterations = {steps} all steps but the first are off-policy; "
                "use ppo_clip or cispo, or one step per batch"
            )

    def __call__(self, x: LossInputs) -> PerToken:
        return PerToken(-x.advantage_BT * x.logp_BT, {"ratio": x.log_ratio_BT.exp().detach()})
