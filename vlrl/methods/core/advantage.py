"""Advantage estimators: one advantage per rollout, or per token.

    grpo           group-relative: the reward minus the group's mean, over its std (variants: Dr.GRPO, Lite PPO)
    rloo           REINFORCE leave-one-out
    reinforce      the reward minus a running mean
    reinforce_pp   REINFORCE++: normalised over all tokens of the step
    gae            PPO's generalised advantage estimation with a critic, per token

Shapes: B rollouts of the step, in order; T tokens of the longest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlrl import functional
from vlrl.capabilities import Capability
from vlrl.context import RunContext
from vlrl.functional.exact import mean
from vlrl.methods.core.critic import RETURNS, VALUE_CRITIC, VALUE_CRITIC_MODEL
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.registry import ConfigError, register
from vlrl.stages import TOKEN_ADVANTAGES, AdvantageEstimator, State
from vlrl.types import Group, Rollout


def flat_rewards(groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """(B,) float64 rewards of all rollouts, in order, and the (B,) number of each one's group: what `vlrl.functional` reads."""
    numbers = [number for number, group in enumerate(groups) for _ in group]
    return torch.tensor([r for group in groups for r in group.rewards], dtype=torch.float64), torch.tensor(numbers, dtype=torch.long)


def flat_lengths(groups: Sequence[Group]) -> Tensor:
    """(B,) lengths in tokens of all rollouts, in order."""
    return torch.tensor([len(rollout) for group in groups for rollout in group], dtype=torch.long)


def by_group(values: Tensor, groups: Sequence[Group]) -> list[list[float]]:
    """One list of numbers per group, from one number per rollout."""
    remaining = iter(values.tolist())
    return [[next(remaining) for _ in group] for group in groups]


def whiten_rows(rows: Sequence[list[float]], eps: float = 1e-8) -> None:
    """Whitening in place: mean 0 and variance 1 over all tokens of all rows; tokens that are all equal become 0."""
    whitened = iter(functional.whiten(torch.tensor([a for row in rows for a in row], dtype=torch.float64), eps=eps).tolist())
    for row in rows:
        row[:] = [next(whitened) for _ in row]


def set_token_advantages(groups: Sequence[Group], rows: Sequence[list[float]]) -> list[list[float]]:
    """Write TOKEN_ADVANTAGES, one row per rollout, in order. Returns their means, as the advantages of the rollouts."""
    remaining = iter(rows)
    for group in groups:
        for rollout in group:
            TOKEN_ADVANTAGES.set(rollout, next(remaining))
    return [[mean(TOKEN_ADVANTAGES[rollout]) for rollout in group] for group in groups]


@dataclass(frozen=True)
class GroupRelative(AdvantageEstimator):
    """Base of the estimators that compare the rollouts of a prompt."""

    def check(self, run: RunContext) -> None:
        if run.rollout.samples and run.group_size < 2:
            raise ConfigError(
                f"group_size: {run.group_size} with advantage {self.name!r} gives no signal, because it compares the rollouts of a prompt; "
                "use 2 or more, or an advantage without a group baseline (reinforce)"
            )


@register("grpo")
@dataclass(frozen=True)
class GRPO(GroupRelative):
    """GRPO's group-relative advantage: A_i = (r_i - mean_G r) / (std r + eps).

    `scale`: "group" divides by the group's std, "batch" by the std of all rewards of the step (Lite PPO, arXiv:2508.08221), "none" does not divide
    (Dr.GRPO, arXiv:2503.20783).
    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2. It leaves std and eps open: `unbiased` true with eps 1e-6 is verl's, with 1e-4 TRL's.
    Edge: a group of equal rewards, or of one rollout, gives zeros.
    """

    eps: float = 1e-6
    unbiased: bool = True
    scale: Literal["group", "batch", "none"] = "group"

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scale = {"group": "std", "batch": "batch_std", "none": "none"}[self.scale]
        return by_group(functional.group_advantages(*flat_rewards(groups), scale=scale, eps=self.eps, unbiased=self.unbiased), groups)


@register("rloo")
@dataclass(frozen=True)
class RLOO(GroupRelative):
    """REINFORCE leave-one-out: A_i = r_i - mean of the other rewards = G / (G - 1) * (r_i - mean r).

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 8 (Kool et al. 2019).
    Edge: a rollout alone in its group gets zero.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return by_group(functional.rloo_advantages(*flat_rewards(groups)), groups)


@dataclass
class ReinforceState(State):
    """The running mean of rewards; None before the first step."""

    baseline: float | None = None


@register("reinforce")
@dataclass(frozen=True)
class Reinforce(AdvantageEstimator):
    """REINFORCE with a baseline: A_i = r_i - b, b the running mean of the steps before: b <- decay * b + (1 - decay) * mean r.

    `decay` 0 uses no baseline (A = r). Edge: in the first step b is that step's own mean.
    Paper: Williams 1992, doi:10.1007/BF00992696, sec. 4; for language models arXiv:2402.14740, sec. 2.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1); 0 means no baseline")

    def init_state(self) -> ReinforceState:
        return ReinforceState()

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        if not self.decay:
            return [list(group.rewards) for group in groups]
        now = mean([r for group in groups for r in group.rewards])
        baseline = now if self.state.baseline is None else self.state.baseline
        self.state.baseline = self.decay * baseline + (1 - self.decay) * now
        return [[r - baseline for r in group.rewards] for group in groups]


@register("reinforce_pp")
@dataclass(frozen=True)
class ReinforcePP(GroupRelative):
    """REINFORCE++: A_i = (s_i - mean s) / sqrt(var s + eps) over all TOKENS of the step, with s_i = r_i, or r_i - mean_G r with `baseline`.

    Paper: Hu 2025 (REINFORCE++), arXiv:2501.03262, eq. 4-5 (baseline: sec. 3.2). A rollout's value counts once per token, with the unbiased
    variance, as in verl. The paper's KL reward is `kl_in_reward` (reward shaping) or `kl_return` (token credit).
    Edge: with `baseline`, a group of equal rewards has s = 0, and the batch mean is not subtracted again, so that it stays without signal.
    """

    baseline: bool = False
    eps: float = 1e-8

    def check(self, run: RunContext) -> None:
        if self.baseline:
            super().check(run)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        reward_B, group_B = flat_rewards(groups)
        return by_group(functional.reinforce_pp_advantages(reward_B, flat_lengths(groups), group_B if self.baseline else None, eps=self.eps), groups)


@register("gae")
@dataclass(frozen=True)
class GAE(AdvantageEstimator):
    """PPO's generalised advantage estimation over tokens, with the reward at the last token; for token credit `per_token`.

        delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}

    Writes TOKEN_ADVANTAGES and RETURNS (A + V, the critic's targets); the rollout's own advantage is the mean over its tokens. `whiten` normalises
    the advantages to mean 0 and variance 1 over all tokens of the step. `values` names the aux tensor with V: `value` (a head on the policy's states,
    callback `critic`) or `model_value` (a separate model, callback `critic_model`).
    Paper: Schulman et al. 2016, arXiv:1506.02438, eq. 16; PPO, arXiv:1707.06347; Open-Reasoner-Zero, arXiv:2503.24290 (gamma = lambda = 1: A = R -
    V). Edge: unlike a group-relative advantage it has a signal in groups of equal rewards.
    """

    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    values: Literal["value", "model_value"] = "value"
    provides = (TOKEN_ADVANTAGES, RETURNS)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.values,)

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (VALUE_CRITIC if self.values == "value" else VALUE_CRITIC_MODEL,)

    def check(self, run: RunContext) -> None:
        check_token_credit(run, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rollouts = [rollout for group in groups for rollout in group]
        rows = self.token_advantages(rollouts) if rollouts else []
        if self.whiten:
            whiten_rows(rows)
        return set_token_advantages(groups, rows)

    def token_advantages(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """GAE of every rollout, by token; writes RETURNS."""
        lengths = [len(rollout) for rollout in rollouts]
        value_BT = pad_sequence([torch.tensor(rollout.signals[self.values], dtype=torch.float64) for rollout in rollouts], batch_first=True)
        mask_BT = torch.arange(value_BT.shape[1]) < torch.tensor(lengths)[:, None]
        reward_B = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
        advantage_BT, return_BT = functional.gae(functional.token_rewards(reward_B, mask_BT), value_BT, mask_BT, self.gamma, self.lam)
        for rollout, n, returns in zip(rollouts, lengths, return_BT.tolist(), strict=True):
            RETURNS.set(rollout, returns[:n])
        return [row[:n] for row, n in zip(advantage_BT.tolist(), lengths, strict=True)]
