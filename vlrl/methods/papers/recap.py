"""Rewards that are earned already count less, rewards that lag or waver count more."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("recap")
@dataclass(frozen=True)
class Recap(RewardShaping):
    """r = sum_k v_k w_k s_k over the slots k that scored a rollout; w = K softmax(x / tau), x_k = (1 - mean m_k) + std m_k over `window` steps,

    m_k the step's mean of slot k on all ranks, v_k its weight in the config, K the number of slots with a weight.
    Paper: Phan et al. 2025 (RECAP), arXiv:2510.21978: objectives are reweighted online by short-horizon convergence and instability, away from
    saturated ones. Deviates: no released code was found; both signals, tau and the window are ours, and only rewards (in [0, 1]) are weighted, no
    further losses. General data is replayed as further sources under `data.train`. Edge: w = 1 until two steps were seen; a slot that scored nothing
    in a step keeps its window.
    State: the windows.
    """

    tau: float = 0.5
    window: int = 10
    windows: dict[str, list[float]] = field(init=False, default_factory=dict, repr=False, compare=False)
    sums: dict[str, list[float]] = field(init=False, default_factory=dict, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tau <= 0 or self.window < 2:
            raise ValueError(f"tau={self.tau} must be above 0 and window={self.window} at least 2")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    @property
    def slots(self) -> list[str]:
        """The objectives, in the order of the config: the same on all ranks."""
        return [slot for slot, reward in self.run.rewards.items() if reward.weight > 0]

    def weights(self) -> dict[str, float]:
        """w by slot; they sum to K."""
        signal = {slot: attention(self.windows.get(slot, [])) for slot in self.slots}
        if any(value is None for value in signal.values()):
            return dict.fromkeys(signal, 1.0)
        raw = {slot: math.exp(value / self.tau) for slot, value in signal.items() if value is not None}
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
                    entry = self.sums.setdefault(slot, [0.0, 0.0])
                    entry[0], entry[1] = entry[0] + score, entry[1] + 1.0
            out.append(total)
        return out

    def metrics(self) -> dict[str, float]:
        """Called once per step on every rank: closes the step's means."""
        parts = self.run.gather([dict(self.sums)])
        for slot in self.slots:
            score, count = (math.fsum(part[slot][i] for part in parts if slot in part) for i in (0, 1))
            if count:
                self.windows[slot] = [*self.windows.get(slot, []), score / count][-self.window :]
        self.sums.clear()
        return {f"objective/{slot}": weight for slot, weight in self.weights().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"windows": {slot: list(values) for slot, values in self.windows.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.windows.clear()
        self.windows.update(state["windows"])


def attention(means: list[float]) -> float | None:
    """(1 - mean) + std of a window; None for fewer than two steps."""
    if len(means) < 2:
        return None
    mean = math.fsum(means) / len(means)
    return 1.0 - mean + math.sqrt(math.fsum((m - mean) ** 2 for m in means) / len(means))
