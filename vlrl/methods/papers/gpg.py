"""Group policy gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.functional.exact import centred, std
from vlrl.methods.core.advantage import GroupRelative
from vlrl.registry import register
from vlrl.types import Group


@register("gpg")
@dataclass(frozen=True)
class GPG(GroupRelative):
    """A_i = alpha * (r_i - mean_G r) / F,  alpha = groups / groups whose rewards differ,  F = 1 or std_G.

    alpha makes up for groups without gradient, so that the step does not shrink with their share.
    Paper: Chu et al. 2025, arXiv:2504.02546, eq. 6-8.  Edge: no group differs: all zeros.
    """

    divisor: Literal["one", "std"] = "one"
    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        live = sum(1 for group in groups if group.rewards and min(group.rewards) != max(group.rewards))
        alpha = len(groups) / max(live, 1)
        divisors = [std(group.rewards) + self.eps if self.divisor == "std" else 1.0 for group in groups]
        return [[alpha * a for a in centred(group.rewards, f)] for group, f in zip(groups, divisors)]
