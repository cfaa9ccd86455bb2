"""Prefixes that grow when learning stalls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods._validation import accuracy, check_heldout
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("pppo")
@dataclass(frozen=True)
class PrefixGrowth(Callback):
    """Strategy `pppo` retains `step` more of a rollout, up to `most`, whenever the held-out accuracy, looked at every `look` steps, has not risen.

    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274: progressive prefix retention, from 0.15 by 0.05 to 0.35.  The pace `look` is vlrl's.
    Edge: the first look sets the mark.
    """

    look: int = 25
    step: float = 0.05
    most: float = 0.35
    state: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.look < 1:
            raise ValueError(f"look={self.look} must be at least 1: steps from one look at the held-out accuracy to the next")

    def check(self, run: Run) -> None:
        if run.strategy.name != "pppo":
            raise ConfigError(f"callbacks: pppo moves a share that strategy {run.strategy.name!r} does not have; use strategy: {{name: pppo}}")
        check_heldout(run, "callbacks: pppo")

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        if (run.phase_step + 1) % self.look == 0:
            now = accuracy(run)
            if now <= self.state.get("accuracy", -1.0):
                share = run.strategy.state["share"]
                run.strategy.state["share"] = max(share, min(share + self.step, self.most))
            self.state["accuracy"] = now
        return {"share": run.strategy.state["share"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)
