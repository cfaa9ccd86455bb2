"""Generalised advantage estimation with a critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlrl.methods._tokens import check_credit, hand_over, whiten
from vlrl.registry import ConfigError, register
from vlrl.stages import Advantage
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A_t = sum_k (gamma lambda)^k delta_{t+k},  delta_t = r_t + gamma V_{t+1} - V_t, with V = 0 after the last token."""
    result, following, advantage = [0.0] * len(rewards), 0.0, 0.0
    for t in range(len(rewards) - 1, -1, -1):
        advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
        result[t], following = advantage, values[t]
    return result


@register("gae")
@dataclass(frozen=True)
class GAE(Advantage):
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

    def check(self, run: Run) -> None:
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
