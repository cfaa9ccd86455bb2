"""VeriFree: reinforcement learning without a verifier; the reference answer's probability rewards the
reasoning, and weights its own likelihood.

`verifree` is a token credit; the reward is reward shaping `rlpr` with form product and splice.
Paper: Zhou et al. 2025 (VeriFree), arXiv:2505.21493, with released script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.papers.rlpr import SPLICED_REFERENCE
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenCredit
from vlrl.types import Group


@register("verifree")
@dataclass(frozen=True)
class VeriFree(TokenCredit):
    """VeriFree's credit: A_{i,t} = A_i on the reasoning, R_i on the tokens of the reference that `rlpr` (with
    `splice`) put in.

    With a policy loss whose gradient is A grad log pi this is  A_i grad log pi(z_i | x) + R_i grad log pi(y*
    | x, z_i), R_i the rollout's reward. Paper: Zhou et al. 2025 (VeriFree), arXiv:2505.21493; released
    script: sft_coef_source reward. Edge: a rollout without a reference: A_i.
    """

    requires = (SPLICED_REFERENCE,)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            start, end = SPLICED_REFERENCE.get(rollout, (len(rollout), len(rollout)))
            result.append([a] * start + [rollout.reward] * (end - start) + [a] * (len(rollout) - end))
        return result
