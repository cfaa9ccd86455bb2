"""Groups whose outcome was uncertain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods._accuracy import accuracies, slots_of
from vlrl.methods.sampler.vcrl import uncertainty
from vlrl.registry import ConfigError, register
from vlrl.stages import Gate
from vlrl.types import Group, Verdict

if TYPE_CHECKING:
    from vlrl.run import Run


@register("variance")
@dataclass(frozen=True)
class Variance(Gate):
    """Keeps a group with p >= least, p = s^2 / s_max^2: the variance of its rewards over the largest that so many rewards in [0, 1] can have.

    Of 0/1 rewards with k of G right: p = k (G - k) / (floor(G/2) ceil(G/2)), 1 where half are right.
    Paper: Jiang et al. 2025 (VCRL), arXiv:2509.19803, variance-based dynamic sampling (kappa is `least`). `slot` is the accuracy (empty: the first
    reward with a weight that scored the group). Edge: a group of one is never kept. Raises KeyError if `slot` did not score the rollouts.
    """

    least: float = 0.3
    slot: str = ""
    slots: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ConfigError(f"gate: variance needs least in (0, 1], got {self.least}")

    def setup(self, run: Run) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, group: Group) -> Verdict:
        return Verdict(True) if uncertainty(accuracies(group, self.slot, self.slots)) >= self.least else Verdict(False, "too certain")
