"""RECAP: dynamic reweighting of several objectives; saturated rewards count less, rewards that lag or
fluctuate count more.

`recap` is a reward shaping. The paper's replay of general data is further sources under `data.train`.

Paper: Phan et al. 2025 (RECAP), arXiv:2510.21978, sec. 4. Deviates: only rewards (in [0, 1]) are weighted, no
supervised losses beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.plugins.contexts import StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.types import Group


@dataclass
class RecapState(State):
    """`windows`: each slot's losses of the last two windows. `sums`: (sum, count) of the current step's
    scores by slot, of this rank."""

    windows: dict[str, list[float]] = field(default_factory=dict)
    sums: dict[str, list[float]] = transient(factory=dict)


@register("recap")
@dataclass(frozen=True)
class Recap(RewardShaping):
    """RECAP's reweighted reward: r = sum_k v_k w_k s_k over the slots k that scored a rollout.

        w = K softmax((c + i) / tau)
        c_k = mu~_k / mu_k               convergence rate: the mean loss of the last `window` steps before
                                         these, over that of the last `window`
        i_k = sigma_k / (mu_k + mu~_k)   instability: sigma^2 = 1/(2 window - 1) sum (L - mu_k)^2 over both
                                         windows

    L_k = 1 - (the step's mean of slot k on all ranks) is the loss of slot k, v_k its weight in the config, K
    the number of slots with a weight. Paper: Phan et al. 2025, arXiv:2510.21978, sec. 4 and eq. 1 (tau 5).
    Deviates: it does not say what the loss of a reward is (1 - the reward is ours); `eps` is added to both
    means. Edge: w = 1 until each slot has 2 `window` steps; a slot that scored nothing in a step keeps its
    windows. State: the losses of the last steps.
    """

    state_class = RecapState
    tau: float = 5.0
    window: int = 10
    eps: float = 0.01
    waits_for = "two windows of steps"

    def __post_init__(self) -> None:
        if self.tau <= 0 or self.window < 1 or self.eps <= 0:
            raise ValueError(
                f"tau={self.tau} and eps={self.eps} must be above 0 and window={self.window} at least 1"
            )

    @property
    def slots(self) -> list[str]:
        """The objectives, in the order of the config, so that it is the same on all ranks."""
        return [slot for slot, reward in self.run.rewards.items() if reward.weight > 0]

    def weights(self) -> dict[str, float]:
        """w by slot; they sum to K."""
        signals = {
            slot: priority(self.state.windows.get(slot, []), self.window, self.eps) for slot in self.slots
        }
        if any(value is None for value in signals.values()):
            return dict.fromkeys(signals, 1.0)
        highest = max(value for value in signals.values() if value is not None) if signals else 0.0
        raw = {
            slot: math.exp((value - highest) / self.tau)
            for slot, value in signals.items()
            if value is not None
        }
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

    def end_step(self, run: StepContext) -> None:
        state: RecapState = self.state
        parts = run.gather([dict(state.sums)])
        for slot in self.slots:
            score, count = (math.fsum(part[slot][i] for part in parts if slot in part) for i in (0, 1))
            if count:
                state.windows[slot] = [*state.windows.get(slot, []), 1.0 - score / count][-2 * self.window :]
        state.sums = {}

    def metrics(self) -> dict[str, float]:
        return {f"objective/{slot}": weight for slot, weight in self.weights().items()}


def priority(losses: Sequence[float], window: int, eps: float) -> float | None:
    """c + i of a slot's last losses, the oldest first; None for fewer than two windows."""
    if len(losses) < 2 * window:
        return None
    before, now = (math.fsum(part) / window for part in (losses[-2 * window : -window], losses[-window:]))
    spread = math.sqrt(math.fsum((loss - now) ** 2 for loss in losses[-2 * window :]) / (2 * window - 1))
    return (max(before, 0.0) + eps) / (max(now, 0.0) + eps) + spread / (
        max(before, 0.0) + max(now, 0.0) + 2 * eps
    )
