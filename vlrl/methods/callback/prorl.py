"""A reference that moves on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods._validation import accuracy, check_heldout
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("reference_reset")
@dataclass(frozen=True)
class ReferenceReset(Callback):
    """pi_ref <- pi every `every` steps, and where the held-out accuracy, looked at every `look` steps, has not risen for `patience` looks in a row.

    0 switches either off. Risen is above the best since the last reset. `reset_optimizer` forgets the optimizer's moments too.
    Paper: Liu et al. 2025 (ProRL), arXiv:2505.24864, sec. 3.2: hard resets of the reference and of the optimizer when validation stalls.  The pace
    is vlrl's: the paper's resets were made by hand.  Raises ConfigError where nothing reads the reference.
    """

    every: int = 0
    look: int = 0
    patience: int = 2
    reset_optimizer: bool = True
    state: dict[str, float] = field(init=False, default_factory=lambda: {"best": -math.inf, "waited": 0}, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if "ref_logp" not in run.fields:
            raise ConfigError(
                "callbacks: reference_reset moves the reference, but nothing reads it; add a term: {kl: {name: kl}}, or drop the callback"
            )
        if not self.every and not self.look:
            raise ConfigError("callbacks: reference_reset with every: 0 and look: 0 never resets; give one of them")
        if self.look:
            check_heldout(run, "callbacks: reference_reset")

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        done = run.phase_step + 1
        due = bool(self.every) and done % self.every == 0
        if self.look and done % self.look == 0:
            now = accuracy(run)
            better = now > self.state["best"]
            self.state.update(best=max(now, self.state["best"]), waited=0 if better else self.state["waited"] + 1)
            due = due or self.state["waited"] >= self.patience
        if due:
            run.policy.keep_reference(renew=True)
            self.state.update(best=-math.inf, waited=0)
            if self.reset_optimizer:
                run.optimizer.state.clear()
        return {"reset": float(due)}

    def state_dict(self) -> dict[str, Any]:
        return {"best": None if self.state["best"] == -math.inf else self.state["best"], "waited": self.state["waited"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(best=-math.inf if state["best"] is None else state["best"], waited=state["waited"])
