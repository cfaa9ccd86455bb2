"""Group-relative advantages.

Advantages per token, for the plug-ins that write them where credit `per_token` reads them.

Generalised advantage estimation with a critic.

The plain reward, or the reward above a running mean.

Batch-normalised REINFORCE.

Leave-one-out baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlrl.registry import ConfigError, register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; of nothing: 0. Equal values give exactly that value, so that a group without signal is exactly zero."""
    if not values:
        return 0.0
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def std(values: Sequence[float], unbiased: bool = True) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - unbiased))


def centred(values: Sequence[float], divisor: float) -> list[float]:
    """(v - mean) / divisor; zeros where all values are equal, whatever the divisor."""
    centre = mean(values)
    return [(v - centre) / divisor if v != centre else 0.0 for v in values]


@dataclass(frozen=True)
class GroupRelative(AdvantageEstimator):
    """What the advantages share that compare the rollouts of a prompt."""

    def check(self, run: RunContext) -> None:
        if run.rollout.samples and run.group_size < 2:
            raise ConfigError(
                f"group_size: {run.group_size} with advantage {self.name!r} gives no signal, for it compares the rollouts of a prompt; "
                "use 2 or more, or an advantage without a group baseline (reinforce)"
            )


@register("grpo")
@dataclass(frozen=True)
class GRPO(GroupRelative):
    """A_i = (r_i - mean_G r) / (std r + eps).

    `scale`: "group" divides by the group's std, "batch" by the std of all rewards of the step (Lite PPO, arXiv:2508.08221), "none" not at all
    (Dr.GRPO, arXiv:2503.20783).
    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2.  It leaves std and eps open: `unbiased` true with eps 1e-6 is verl's, with 1e-4 TRL's.
    Edge: a group of equal rewards, or of one rollout, gives zeros.
    """

    eps: float = 1e-6
    unbiased: bool = True
    scale: Literal["group", "batch", "none"] = "group"

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        pooled = std([r for group in groups for r in group.rewards], self.unbiased)
        result = []
        for group in groups:
            divisor = {"group": std(group.rewards, self.unbiased) + self.eps, "batch": pooled + self.eps, "none": 1.0}[self.scale]
            result.append(centred(group.rewards, divisor))
        return result


def check_credit(run: RunContext, name: str) -> None:
    """Refuse a credit that would overwrite what advantage `name` writes."""
    if run.token_credit.name != "per_token":
        raise ConfigError(
            f"advantage {name} writes advantages per token, which credit {run.token_credit.name!r} would overwrite; use credit: {{name: per_token}}"
        )


def whiten(rows: Sequence[list[float]], eps: float = 1e-8) -> None:
    """Mean 0 and variance 1 over all tokens, in place. Tokens that are all alike become 0."""
    flat = [a for row in rows for a in row]
    centre = mean(flat)
    spread = math.sqrt(mean([(a - centre) ** 2 for a in flat])) + eps
    for row in rows:
        row[:] = [(a - centre) / spread if a != centre else 0.0 for a in row]


def hand_over(groups: Sequence[Group], rows: Sequence[list[float]]) -> list[list[float]]:
    """Leave one row per rollout, in order, in `rollout.info["token_advantages"]`; the rollout's own number is its mean."""
    left = iter(rows)
    for group in groups:
        for rollout in group:
            rollout.info["token_advantages"] = next(left)
    return [[mean(rollout.info["token_advantages"]) for rollout in group] for group in groups]


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A_t = sum_k (gamma lambda)^k delta_{t+k},  delta_t = r_t + gamma V_{t+1} - V_t, with V = 0 after the last token."""
    result, following, advantage = [0.0] * len(rewards), 0.0, 0.0
    for t in range(len(rewards) - 1, -1, -1):
        advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
        result[t], following = advantage, values[t]
    return result


@register("gae")
@dataclass(frozen=True)
class GAE(AdvantageEstimator):
    """GAE over tokens, the reward at the last one; written per token, for credit `per_token` to hand out. The rollout's own number is the mean.

    `whiten` subtracts the mean and divides by the std over all tokens of the step. Values are field `value` (a head on the policy's states, callback
    `critic`) or `model_value` (a model of its own, callback `critic_model`), which learn the targets A + V.
    Paper: Schulman et al. 2016, arXiv:1506.02438, eq. 16; PPO, arXiv:1707.06347; Open-Reasoner-Zero, arXiv:2503.24290 (gamma = lambda = 1: A = R -
    V).
    Edge: unlike a group-relative advantage it has a signal in groups of equal rewards.
    """

    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    values: Literal["value", "model_value"] = "value"
    writes_tokens = True

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.values,)

    def check(self, run: RunContext) -> None:
        check_credit(run, "gae")
        wanted = {"value": "critic", "model_value": "critic_model"}[self.values]
        if not any(callback.name == wanted for callback in run.callbacks.values()):
            raise ConfigError(f"advantage gae needs a critic that learns; add callbacks: {{critic: {{name: {wanted}}}}}")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows = []
        for rollout in (rollout for group in groups for rollout in group):
            values = rollout.signals[self.values]
            rewards = [0.0] * (len(rollout) - 1) + [rollout.reward]
            rows.append(gae(rewards, values, self.gamma, self.lam))
            rollout.info["targets"] = [a + v for a, v in zip(rows[-1], values)]
        if self.whiten:
            whiten(rows)
        return hand_over(groups, rows)


@register("reinforce")
@dataclass(frozen=True)
class Reinforce(AdvantageEstimator):
    """A_i = r_i - b, where b is the running mean of the steps before:  b <- decay * b + (1 - decay) * mean r.

    `decay` 0 keeps no baseline (A = r); the first step has b = its own mean, for want of a better one.
    Paper: Williams 1992, doi:10.1007/BF00992696, sec. 4; for language models arXiv:2402.14740, sec. 2.
    """

    decay: float = 0.9
    state: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1); 0 means no baseline")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        if not self.decay:
            return [list(group.rewards) for group in groups]
        now = mean([r for group in groups for r in group.rewards])
        baseline = self.state.get("baseline", now)
        self.state["baseline"] = self.decay * baseline + (1 - self.decay) * now
        return [[r - baseline for r in group.rewards] for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.clear()
        self.state.update(state)


@register("reinforce_pp")
@dataclass(frozen=True)
class ReinforcePP(GroupRelative):
    """A_i = (s_i - mean s) / sqrt(var s + eps) over all TOKENS of the step, with s_i = r_i, or r_i - mean_G r with `baseline`.

    Paper: Hu 2025 (REINFORCE++), arXiv:2501.03262, eq. 4-5 (baseline: sec. 3.2). A rollout's value counts once per token, with the unbiased
    variance, as in verl. The paper's KL reward is `kl_in_reward` (shape) or `kl_return` (credit).
    Edge: with `baseline`, a group of equal rewards has s = 0, and the batch mean is not taken off again, so that it stays without signal.
    """

    baseline: bool = False
    eps: float = 1e-8

    def check(self, run: RunContext) -> None:
        if self.baseline:
            super().check(run)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scores = [[r - (mean(group.rewards) if self.baseline else 0.0) for r in group.rewards] for group in groups]
        pairs = [(s, len(rollout)) for row, group in zip(scores, groups) for s, rollout in zip(row, group)]
        tokens = sum(n for _, n in pairs)
        centre = math.fsum(s * n for s, n in pairs) / max(tokens, 1)
        variance = math.fsum(n * (s - centre) ** 2 for s, n in pairs) / max(tokens - 1, 1)
        shift = 0.0 if self.baseline else centre
        if variance < 1e-24:  # all equal: rounding must not be blown up
            return [[0.0] * len(row) for row in scores]
        return [[(s - shift) / math.sqrt(variance + self.eps) for s in row] for row in scores]


@register("rloo")
@dataclass(frozen=True)
class RLOO(GroupRelative):
    """A_i = r_i - mean of the other rewards = G / (G - 1) * (r_i - mean r).

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 8 (Kool et al. 2019).
    Edge: a rollout alone in its group gets zero.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            rewards = group.rewards
            if len(rewards) < 2 or min(rewards) == max(rewards):
                result.append([0.0] * len(rewards))
                continue
            total = math.fsum(rewards)
            result.append([r - (total - r) / (len(rewards) - 1) for r in rewards])
        return result
