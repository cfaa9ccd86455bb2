"""RECAP: dynamic reweighting of several objectives; saturated rewards count less, rewards that lag or fluctuate count more.

`recap` is a reward shaping. The paper's replay of general data is further sources under `data.train`.

Paper: Phan et al. 2025 (RECAP), arXiv:2510.21978: objectives are reweighted online by short-horizon convergence and instability, away from saturated
ones. Deviates: no released code was found; both signals, tau and the window are ours, and only rewards (in [0, 1]) are weighted, no further losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.context import RunContext
from vlrl.registry import register
from vlrl.stages import RewardShaping, State, transient
from vlrl.types import Group


@dataclass
class RecapState(State):
    """`windows`: each slot's means of the last `window` steps. `sums`: (sum, count) of the current step's scores by slot, of this rank."""

    windows: dict[str, list[float]] = field(default_factory=dict)
    sums: dict[str, list[float]] = transient(factory=dict)


@register("recap")
@dataclass(frozen=True)
class Recap(RewardShaping):
    """RECAP's reweighted reward: r = sum_k v_k w_k s_k over the slots k that scored a rollout.

        w = K softmax(x / tau),  x_k = (1 - mean m_k) + std m_k over the last `window` steps

    m_k is the step's mean of slot k on all ranks, v_k its weight in the config, K the number of slots with a weight above 0.
    Edge: w = 1 until each slot has two steps; a slot that scored nothing in a step keeps its window. State: the windows.
    """

    tau: float = 0.5
    window: int = 10

    def __post_init__(self) -> None:
        if self.tau <= 0 or self.window < 2:
            raise ValueError(f"tau={self.tau} must be above 0 and window={self.window} at least 2")

    def init_state(self) -> RecapState:
        return RecapState()

    @property
    def slots(self) -> list[str]:
        """The objectives, in the order of the config, so that it is the same on all ranks."""
        return [slot for slot, reward in self.run.rewards.items() if reward.weight > 0]

    def weights(self) -> dict[str, float]:
        """w by slot; they sum to K."""
        signals = {slot: priority(self.state.windows.get(slot, [])) for slot in self.slots}
        if any(value is None for value in signals.values()):
            return dict.fromkeys(signals, 1.0)
        raw = {slot: math.exp(value / self.tau) for slot, value in signals.items() if value is not None}
        return {slot: len(raw) * value / sum(raw.values()) for slot, value in raw.items()}

    def __call__(self, group: Group) -> list[float]:
        weights = self.weights()
        out = []
        for rollout in group:
            total = rollout.reward
            for slot, weight in weights.items():
                if slot in rollout.rewards:
                    score = rollout.rewards[slot]
                    total += (weight - 1.0) * self.run.rewards[slot].weight * score
                    entry = self.state.sums.setdefault(slot, [0.0, 0.0])
                    entry[0], entry[1] = entry[0] + score, entry[1] + 1.0
            out.append(total)
        return out

    def end_step(self, run: RunContext) -> None:
        state: RecapState = self.state
        parts = run.gather([dict(state.sums)])
        for slot in self.slots:
            score, count = (math.fsum(part[slot][i] for part in parts if slot in part) for i in (0, 1))
            if count:
                state.windows[slot] = [*state.windows.get(slot, []), score / count][-self.window :]
        state.sums = {}

    def metrics(self) -> dict[str, float]:
        return {f"objective/{slot}": weight for slot, weight in self.weights().items()}


def priority(means: Sequence[float]) -> float | None:
    """x_k: (1 - mean) + std of a window; None for fewer than two steps."""
    if len(means) < 2:
        return None
    mean = math.fsum(means) / len(means)
    return 1.0 - mean + math.sqrt(math.fsum((m - mean) ** 2 for m in means) / len(means))
