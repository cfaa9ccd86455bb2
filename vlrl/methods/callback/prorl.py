"""A reference that moves on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("reference_reset")
@dataclass(frozen=True)
class ReferenceReset(Callback):
    """pi_ref <- pi every `every` steps (0: never), and where the mean reward of the last `window` steps is no better than that of the `window`
    before.

    `reset_optimizer` forgets the optimizer's moments too. After a reset the plateau is looked for anew.
    Paper: Liu et al. 2025 (ProRL), arXiv:2505.24864, sec. 3.2: hard resets of the reference and of the optimizer when validation stalls.
    Deviates: the training reward stands for the validation score.  Raises ConfigError where nothing reads the reference.
    """

    every: int = 0
    window: int = 25
    margin: float = 0.0
    reset_optimizer: bool = True
    rewards: deque[float] = field(init=False, default_factory=deque, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if "ref_logp" not in run.fields:
            raise ConfigError(
                "callbacks: reference_reset moves the reference, but nothing reads it; add a term: {kl: {name: kl}}, or drop the callback"
            )

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        rewards = [rollout.reward for group in groups for rollout in group]
        if rewards:
            self.rewards.append(sum(rewards) / len(rewards))
        due = bool(self.every) and (run.phase_step + 1) % self.every == 0
        if len(self.rewards) >= 2 * self.window > 0:
            values = list(self.rewards)
            recent, before = values[-self.window :], values[-2 * self.window : -self.window]
            due = due or sum(recent) <= sum(before) + self.margin * self.window
            self.rewards.popleft()
        if due:
            run.policy.keep_reference(renew=True)
            self.rewards.clear()
            if self.reset_optimizer:
                run.optimizer.state.clear()
        return {"reset": float(due)}

    def state_dict(self) -> dict[str, Any]:
        return {"rewards": list(self.rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rewards.clear()
        self.rewards.extend(state["rewards"])
