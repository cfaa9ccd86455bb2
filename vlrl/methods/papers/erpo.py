"""Prompts that are always solved are sampled hotter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.core.sampling import Plain
from vlrl.registry import register
from vlrl.types import Prompt, Sampling

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "erpo"


@register("erpo")
@dataclass(frozen=True)
class Erpo(Plain):
    """T = min(temperature + rise c, hottest), c = how often in a row all rollouts of the prompt's row were right when it was visited.

    Paper: Liu et al. 2025 (ERPO), arXiv:2511.04800: a history per prompt, a temperature that rises for prompts that were solved by all, up to a
    highest one. Its code was not found: that the rise is linear, its size, and that a wrong rollout sets c back to 0 are ours. Left out: its pseudo
    negative reward for groups that are all right. Right means a reward above `threshold` (of `slot`, or the total). All ranks count alike; c is in
    the run's history, so it survives a restart. Edge: several groups of a row in one step count once each.
    """

    rise: float = 0.1
    hottest: float = 1.5
    slot: str = ""
    threshold: float = 0.5
    run: Any = field(init=False, default=None, repr=False, compare=False)
    state: dict[str, float] = field(init=False, default_factory=lambda: {"residual": 0.0, "seen": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.temperature, (int, float)) or not 0 < self.temperature <= self.hottest or self.rise <= 0:
            raise ValueError(
                f"temperature={self.temperature}, hottest={self.hottest}, rise={self.rise}: 0 < temperature <= hottest and 0 < rise is needed"
            )

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        times = self.run.history.get(prompt.row.id, {}).get(KEY, 0) if self.run is not None else 0
        return replace(super().__call__(prompt, attempt), temperature=min(self.temperature + self.rise * times, self.hottest))  # type: ignore[operator]

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        for group in groups:
            scores = [rollout.rewards[self.slot] if self.slot else rollout.reward for rollout in group if rollout.source == "policy"]
            if not scores:
                continue
            memory = self.run.history.setdefault(group.row.id, {})
            memory[KEY] = memory.get(KEY, 0) + 1 if min(scores) > self.threshold else 0
            self.state["residual"] += float(memory[KEY] > 0)
            self.state["seen"] += 1

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of this step's groups that were all right."""
        share = (self.state["residual"], self.state["seen"])
        self.state.update(residual=0.0, seen=0.0)
        return {"decode/residual": share}
