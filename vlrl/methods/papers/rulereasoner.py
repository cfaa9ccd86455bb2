"""RuleReasoner: domain-aware dynamic sampling, which draws a domain the more often, the further its reward is from its target.

`rulereasoner` is a prompt sampler. Domains are the sources under `data.train`.

Paper: RuleReasoner, arXiv:2506.08672, sec. 3.2. Deviates: the decayed mean is an exponential one (the release offers harmonic and geometric weights
too), and starts at the first mean observed; a domain without a mean counts as r = 0; the paper's eps, added to every v_d, cancels and is left out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from vlrl.context import RunContext
from vlrl.methods.common.row_order import Mixture
from vlrl.registry import ConfigError, register
from vlrl.stages import PromptSampler, State, transient
from vlrl.types import Group, Row


@dataclass
class RulereasonerState(State):
    """`means` by domain, `positions` (rows drawn) by domain, `drawn` (rows drawn in all); `mixtures` are the domains' row orders.

    `served` is the domain of each row that was drawn in this step.
    """

    means: dict[str, float] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    drawn: int = 0
    mixtures: dict[str, Mixture] = transient(factory=dict)
    served: dict[str, str] = transient(factory=dict)


@register("rulereasoner")
@dataclass(frozen=True)
class Rulereasoner(PromptSampler):
    """Domain-aware dynamic sampling: w_d = exp(v_d / tau) / sum_k exp(v_k / tau),  v_d = max(0, target - r_d).

        r_d <- (1 - decay) r_d + decay (mean reward of d in the step)

    `floor` is the smallest share of a domain. `slot` names the reward (empty: the total).
    Paper: RuleReasoner, arXiv:2506.08672, sec. 3.2. Edge: with one domain all rows are of it. Reads `run.rows` (by source). State: means, positions.
    """

    target: float = 1.0
    tau: float = 0.5
    decay: float = 0.5
    floor: float = 0.0
    slot: str = ""

    def __post_init__(self) -> None:
        if self.tau <= 0 or not 0 < self.decay <= 1 or not 0 <= self.floor < 1:
            raise ConfigError(f"prompt_sampler: tau={self.tau} must be above 0, decay={self.decay} in (0, 1], floor={self.floor} in [0, 1)")

    def init_state(self) -> RulereasonerState:
        return RulereasonerState()

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        names, state = list(run.rows), self.state
        if self.floor * len(names) > 1:
            raise ConfigError(f"prompt_sampler.floor: {self.floor} for each of {len(names)} domains is more than 1 in total; lower it")
        state.positions = state.positions or dict.fromkeys(names, 0)
        state.mixtures = {name: Mixture({name: run.rows[name]}, {}, run.seed) for name in names}
        state.served = {}

    def weights(self) -> dict[str, float]:
        """The share of each domain now; they sum to 1."""
        names, means = list(self.state.mixtures), self.state.means
        gaps = {name: max(0.0, self.target - means.get(name, 0.0)) for name in names}
        largest = max(gaps.values())
        raw = {name: math.exp((gap - largest) / self.tau) for name, gap in gaps.items()}
        total = sum(raw.values())
        return {name: self.floor + (1 - self.floor * len(names)) * value / total for name, value in raw.items()}

    def __call__(self, n: int) -> list[Row]:
        state, weights = self.state, self.weights()
        rows = []
        for _ in range(n):
            rng = random.Random(f"{self.run.seed}|domains|{state.drawn}")
            state.drawn += 1
            name = rng.choices(list(weights), list(weights.values()))[0]
            row = state.mixtures[name].row(state.positions[name])
            state.positions[name] += 1
            state.served[row.id] = name
            rows.append(row)
        return rows

    def end_step(self, run: RunContext) -> None:
        state = self.state
        rewards: dict[str, list[float]] = {}
        for group in run.answered_groups:
            if group.row.id in state.served:
                rewards.setdefault(state.served[group.row.id], []).append(mean_reward(group, self.slot))
        for name, values in rewards.items():
            new = sum(values) / len(values)
            state.means[name] = new if name not in state.means else (1 - self.decay) * state.means[name] + self.decay * new
        state.served = {}

    def metrics(self) -> dict[str, float]:
        return {f"data/weight/{name}": weight for name, weight in self.weights().items()}


def mean_reward(group: Group, slot: str) -> float:
    """The mean over a group's rollouts of one raw reward (0 where it did not score), or of the total."""
    values = [rollout.rewards.get(slot, 0.0) if slot else rollout.reward for rollout in group]
    return sum(values) / len(values) if values else 0.0
