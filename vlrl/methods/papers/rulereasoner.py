"""RuleReasoner: domain-aware dynamic sampling, which draws a domain the more often, the further its reward is
from its target.

`rulereasoner` is a prompt sampler. Domains are the sources under `data.train`.

Paper: RuleReasoner, arXiv:2506.08672, sec. 3.2; checked against the release: bigai-nlco/RuleReasoner at
c6df0212, verl/verl/trainer/ppo/ray_trainer.py (compute_weights_v2), verl/verl/utils/dataset/rl_dataset.py
(DomainSampler), scripts/train/train_mix.sh. Deviates: the script's switch is the harmonic mean over four
batches of compute_weights; the decayed mean here is the paper's, with the script's alpha. A domain without
rows in the batch keeps its mean (the release drops it for good). The paper's eps cancels and is left out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from vlrl.methods.common.correctness import mean_outcome
from vlrl.methods.common.row_order import Mixture
from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import PromptSampler, State, transient
from vlrl.types import Group, Row


@dataclass
class RulereasonerState(State):
    """`means` and `shares` by domain, `positions` (rows drawn) by domain, `steps` seen; `mixtures` are the
    domains' row orders.

    `served` is the domain of each row that was drawn in this step.
    """

    means: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    mixtures: dict[str, Mixture] = transient(factory=dict)
    served: dict[str, str] = transient(factory=dict)


@register("rulereasoner")
@dataclass(frozen=True)
class Rulereasoner(PromptSampler):
    """Domain-aware dynamic sampling: w_d = exp(v_d / tau) / sum_k exp(v_k / tau),  v_d = max(0, target -
    r_d).

        r_d <- (1 - decay) r_d + decay (mean score of d in the step)

    Means and shares are updated after every `every`-th step, from that step; before, all domains have the
    same share. A call for n rows gives floor(n w_d) rows of each domain, and the rest one by one to the
    domains of largest share, in random order. `floor` is the smallest share. The score is that of the outcome
    reward, or the raw one of `slot`. Paper: RuleReasoner, arXiv:2506.08672, sec. 3.2. Edge: the first mean of
    a domain, or one after 0, is the step's. Raises ConfigError for a single domain. Reads `run.rows` (by
    source). State: means, shares, positions.
    """

    state_class = RulereasonerState
    target: float = 1.0
    tau: float = 0.3
    decay: float = 0.5
    every: int = 8
    floor: float = 0.0
    slot: RewardSlot = ""

    def __post_init__(self) -> None:
        if self.tau <= 0 or not 0 < self.decay <= 1 or not 0 <= self.floor < 1 or self.every < 1:
            raise ConfigError(
                f"prompt_sampler: tau={self.tau} must be above 0, decay={self.decay} in (0, 1], "
                f"every={self.every} at least 1 and floor={self.floor} "
                "in [0, 1)"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        names, state = list(run.rows), self.state
        if len(names) < 2:
            raise ConfigError(
                "prompt_sampler: 'rulereasoner' weighs domains against each other, and data.train has "
                f"{names} alone; name a source per domain, as "
                "in tasks/lab_domains"
            )
        if self.floor * len(names) > 1:
            raise ConfigError(
                f"prompt_sampler.floor: {self.floor} for each of {len(names)} domains is more than 1 in "
                "total; lower it"
            )
        state.positions = state.positions or dict.fromkeys(names, 0)
        state.mixtures = {name: Mixture({name: run.rows[name]}, {}, run.seed) for name in names}
        state.served = {}

    def weights(self) -> dict[str, float]:
        """The share of each domain by the present means; they sum to 1."""
        names, means = list(self.state.mixtures), self.state.means
        gaps = {name: max(0.0, self.target - means.get(name, 0.0)) for name in names}
        largest = max(gaps.values())
        raw = {name: math.exp((gap - largest) / self.tau) for name, gap in gaps.items()}
        total = sum(raw.values())
        return {
            name: self.floor + (1 - self.floor * len(names)) * value / total for name, value in raw.items()
        }

    @property
    def shares(self) -> dict[str, float]:
        """The shares that rows are drawn with."""
        return self.state.shares or dict.fromkeys(self.state.mixtures, 1 / len(self.state.mixtures))

    def counts(self, n: int) -> dict[str, int]:
        """How many of n rows each domain gives."""
        shares = self.shares
        counts = {name: int(n * share + 1e-9) for name, share in shares.items()}
        ranked = sorted(shares, key=lambda name: -shares[name])
        for place in range(n - sum(counts.values())):
            counts[ranked[place % len(ranked)]] += 1
        return counts

    def __call__(self, n: int) -> list[Row]:
        state, rows = self.state, []
        for name, count in self.counts(n).items():
            for _ in range(count):
                row = state.mixtures[name].row(state.positions[name])
                state.positions[name] += 1
                state.served[row.id] = name
                rows.append(row)
        random.Random(f"{self.run.seed}|domains|{sum(state.positions.values())}").shuffle(rows)
        return rows

    def end_step(self, run: StepContext) -> None:
        state = self.state
        state.steps += 1
        scores: dict[str, list[float]] = {}
        for group in run.answered_groups if state.steps % self.every == 0 else ():
            if group.row.id in state.served and len(group):
                scores.setdefault(state.served[group.row.id], []).append(mean_score(group, self.slot))
        for name, values in scores.items():
            new = sum(values) / len(values)
            state.means[name] = (
                (1 - self.decay) * state.means[name] + self.decay * new if state.means.get(name) else new
            )
        if scores:
            state.shares = self.weights()
        state.served = {}

    def metrics(self) -> dict[str, float]:
        return {f"data/weight/{name}": share for name, share in self.shares.items()}


def mean_score(group: Group, slot: str) -> float:
    """The mean over a group's rollouts of the outcome, or of one raw reward (0 where it did not score)."""
    return (
        sum(rollout.rewards.get(slot, 0.0) for rollout in group) / len(group)
        if slot
        else mean_outcome(group.rollouts)
    )
