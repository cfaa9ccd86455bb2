"""Dynamic sampling."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Gate
from vlrl.types import Group, Verdict


@register("mixed")
@dataclass(frozen=True)
class Mixed(Gate):
    """Keeps a group whose rewards differ by more than `tolerance`: max r - min r > tolerance.

    `slot` looks at one raw reward (DAPO looks at accuracy) rather than at the total.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 11: 0 < correct rollouts < G.
    Edge: a group of one rollout is never mixed. Raises KeyError if `slot` did not score the rollouts.
    """

    slot: str = ""
    tolerance: float = 1e-9

    def __call__(self, group: Group) -> Verdict:
        scores = group.raw(self.slot) if self.slot else group.rewards
        if scores and max(scores) - min(scores) > self.tolerance:
            return Verdict(True)
        return Verdict(False, f"all {self.slot or 'rewards'} {scores[0]:.3g}" if scores else "empty group")
