"""GPG: group policy gradient. The plain policy gradient with a group baseline, rescaled for the groups
without a gradient.

Paper: Chu et al. 2025 (GPG), arXiv:2504.02546. The policy loss is `policy_gradient` (eq. 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.functional.exact import centred, std
from vlrl.methods.core.advantage import GroupRelative
from vlrl.plugins.registry import register
from vlrl.types import Group


@register("gpg")
@dataclass(frozen=True)
class GPG(GroupRelative):
    """GPG's advantage: A_i = alpha (r_i - mean_G r) / F,  alpha = (groups) / (groups whose rewards differ),
    F = 1 or std_G.

    alpha compensates for groups without a gradient, so that the step does not shrink with their share.
    `divisor` names F. Paper: Chu et al. 2025 (GPG), arXiv:2504.02546, eq. 6-8.  Edge: where no group's
    rewards differ, all advantages are 0.
    """

    divisor: Literal["one", "std"] = "one"
    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        differing = sum(1 for group in groups if group.rewards and min(group.rewards) != max(group.rewards))
        alpha = len(groups) / max(differing, 1)
        divisors = [std(group.rewards) + self.eps if self.divisor == "std" else 1.0 for group in groups]
        return [
            [alpha * a for a in centred(group.rewards, divisor)] for group, divisor in zip(groups, divisors)
        ]
