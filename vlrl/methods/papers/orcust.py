"""Orcust: feedback per step for a GUI agent, from principles that a judge checks and from rules.

    orcust    advantage estimator: the outcome's advantage, and per step what it and later steps earned

Paper: Lu et al. 2025 (Orcust), arXiv:2509.17917.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vlrl.beside.process import STEP_VERDICTS
from vlrl.methods.core.advantage import GRPO, GroupRelative, set_token_advantages
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.types import Group, Rollout


@register("orcust")
@dataclass(frozen=True)
class Orcust(GroupRelative):
    """Orcust's stepwise advantage: GRPO's of the rollout's reward, plus the rewards to go of its steps,
    normalised over all steps of the group.

        A_{i,t} = GRPO_i + weight sum_{k: step k ends at or behind t} (s_{i,k} - mean s) / (std s + eps)

    s are STEP_VERDICTS. Paper: Lu et al. 2025 (Orcust), arXiv:2509.17917, from public summaries: stepwise
    feedback under principles beside rules for the outcome; the form (process supervision of
    arXiv:2402.03300, sec. 4.1.3) and the weight are ours. Edge: equal verdicts, and a rollout without steps,
    leave GRPO's; tokens behind the last step have its advantage alone.
    """

    weight: float = 0.5
    eps: float = 1e-6
    provides = (TOKEN_ADVANTAGES,)
    requires = (STEP_VERDICTS,)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows = []
        for group, outcomes in zip(groups, GRPO()(groups), strict=True):
            values = [value for rollout in group for _, value in STEP_VERDICTS.get(rollout, [])]
            mean = statistics.fmean(values) if values else 0.0
            std = statistics.stdev(values) if len(values) > 1 else 0.0
            for rollout, outcome in zip(group, outcomes, strict=True):
                steps = [
                    (end, self.weight * (value - mean) / (std + self.eps))
                    for end, value in STEP_VERDICTS.get(rollout, [])
                ]
                rows.append(
                    [
                        outcome + math.fsum(v for end, v in steps if start < end)
                        for start in self.starts(rollout)
                    ]
                )
        return set_token_advantages(groups, rows)

    def starts(self, rollout: Rollout) -> list[int]:
        """Where each token begins in the rollout's text, in characters."""
        decode = self.run.policy.tokenizer.decode
        return [0, *accumulate(len(decode([token])) for token in rollout.ids)][: len(rollout)]
