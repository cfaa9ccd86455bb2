"""Prompts whose rewards differ enough, by the standard of the last steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.advantage.grpo import mean, std
from vlrl.registry import register
from vlrl.stages import Gate
from vlrl.types import Group, Verdict

if TYPE_CHECKING:
    from vlrl.run import Run


@register("spread_range")
@dataclass(frozen=True)
class SpreadRange(Gate):
    """Keeps a group with std r >= scale * m, m <- decay m + (1 - decay) (mean std r of a step's groups), as it stood before the step.

    Paper: RLPR, arXiv:2506.18254, sec. 2.4 (threshold from the moving average of the steps' mean std), sec. 3.1: scale 0.5. Deviates: decay is ours;
    each rank goes by its own groups. Edge: in the first step all are kept, also groups of equal rewards.
    """

    scale: float = 0.5
    decay: float = 0.9
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"mean": None, "step": -1, "stds": []}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or self.scale < 0:
            raise ValueError(f"decay, scale: must be in [0, 1) and at least 0, got {self.decay} and {self.scale}")

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> Verdict:
        step = self.run.step if self.run is not None else 0
        if step != self.state["step"]:
            self.learn(step)
        found = std(group.rewards)
        self.state["stds"].append(found)
        least = self.scale * (self.state["mean"] or 0.0)
        return Verdict(True) if found >= least else Verdict(False, "rewards too alike")

    def learn(self, step: int) -> None:
        """The last step's mean spread joins the moving average."""
        if self.state["stds"]:
            now, before = mean(self.state["stds"]), self.state["mean"]
            self.state["mean"] = now if before is None else self.decay * before + (1 - self.decay) * now
        self.state.update(step=step, stds=[])

    def metrics(self) -> dict[str, float]:
        return {"spread_range/least": self.scale * (self.state["mean"] or 0.0)}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)
