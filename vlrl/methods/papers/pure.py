"""The worst step decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlrl.methods.core.advantage import RLOO, GroupRelative, check_credit, hand_over, whiten_rows
from vlrl.registry import register
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


def softmin_rewards(rewards: Sequence[float], temperature: float) -> list[float]:
    """r'_i = softmin(r / T)_i * r_i: a sum of these is close to min r for small T."""
    low = min(rewards, default=0.0)
    weights = [math.exp(-(r - low) / temperature) for r in rewards]
    return [w / math.fsum(weights) * r for w, r in zip(weights, rewards)]


@register("pure")
@dataclass(frozen=True)
class Pure(GroupRelative):
    """A_{i,t} = outcome * RLOO_i + sum over the steps k from t's on of (r'_k - b_k), then mean 0 and variance 1 over all tokens of the batch.

    r' = softmin(r / T) r of the step scores r in `rollout.info["steps"]`, (end, score) pairs as a process reward model gives them; the return of r'
    is about the least of them. b_k: with `baseline` "token" the others' r' per token times the step's tokens, with "step" the mean over the others of
    their r' per step. Credit `per_token` hands the result out.
    Paper: Cheng et al. 2025 (PURE), arXiv:2504.15275, eq. 5-8; T 0.1, outcome 0.1, the token baseline and the whitening as in the released code.
    Edge: a rollout without steps has its outcome only: prompts with only a verifiable reward mix in freely. So do the tokens after the last step. A
    rollout whose siblings have no steps has no baseline.
    """

    temperature: float = 0.1
    outcome: float = 0.1
    baseline: Literal["token", "step"] = "token"

    writes_tokens = True

    def check(self, run: RunContext) -> None:
        super().check(run)
        check_credit(run, "pure")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows = []
        for group, outcomes in zip(groups, RLOO()(groups), strict=True):
            steps = [rollout.info.get("steps") or [] for rollout in group]
            shaped = [softmin_rewards([r for _, r in s], self.temperature) for s in steps]
            for i, (rollout, ends, values, outcome) in enumerate(zip(group, steps, shaped, outcomes, strict=True)):
                widths = [end - start for start, (end, _) in zip([0, *(end for end, _ in ends)], ends)]
                gains = [value - b for value, b in zip(values, self.expected(group, shaped, i, widths), strict=True)]
                row = [self.outcome * outcome] * len(rollout)
                start = 0
                for k, width in enumerate(widths):
                    row[start : start + width] = [self.outcome * outcome + math.fsum(gains[k:])] * width
                    start += width
                rows.append(row)
        whiten_rows(rows)
        return hand_over(groups, rows)

    def expected(self, group: Group, shaped: Sequence[Sequence[float]], i: int, widths: Sequence[int]) -> list[float]:
        """What the other rollouts lead one to expect of each step."""
        others = [(math.fsum(values), len(values), len(rollout)) for j, (rollout, values) in enumerate(zip(group, shaped)) if j != i and values]
        if not others:
            return [0.0] * len(widths)
        if self.baseline == "step":
            return [math.fsum(total / steps for total, steps, _ in others) / len(others)] * len(widths)
        per_token = math.fsum(total for total, _, _ in others) / sum(tokens for _, _, tokens in others)
        return [per_token * width for width in widths]
