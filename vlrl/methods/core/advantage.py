"""Advantage estimators: one advantage per rollout, or per token.

    grpo           group-relative: the reward minus the group's mean, over its std (variants: Dr.GRPO, Lite
    PPO)
    rloo           REINFORCE leave-one-out
    reinforce      the reward minus a running mean
    reinforce_pp   REINFORCE++: normalised over all tokens of the step
    gae            PPO's generalised advantage estimation with a critic, per token
    pass_at_k_max  the best rollout's margin over the second best
    best_and_worst GRPO on the rollouts of a group whose rewards have the largest variance (PODS)

Shapes: B rollouts of the step, in order; T tokens of the longest one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl import functional
from vlrl.functional.exact import mean
from vlrl.methods.core.critic import RETURNS, VALUE_CRITIC, VALUE_CRITIC_MODEL
from vlrl.methods.core.reward_shaping import READS_TOKEN_REWARDS, TOKEN_REWARDS
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator, State
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Group, Rollout


def flat_rewards(groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """(B,) float64 rewards of all rollouts, in order, and the (B,) number of each one's group: what
    `vlrl.functional` reads."""
    numbers = [number for number, group in enumerate(groups) for _ in group]
    return torch.tensor([r for group in groups for r in group.rewards], dtype=torch.float64), torch.tensor(
        numbers, dtype=torch.long
    )


def flat_lengths(groups: Sequence[Group]) -> Tensor:
    """(B,) numbers of trained tokens of all rollouts, in order."""
    return torch.tensor([rollout.trained_tokens for group in groups for rollout in group], dtype=torch.long)


def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype | None = None) -> Tensor:
    """(B, T) of one row of numbers per rollout, 0 behind each."""
    return nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=dtype or torch.float64) for row in rows], batch_first=True
    )


def reward_tensors(groups: Sequence[Group], dense: bool) -> tuple[Tensor, Tensor]:
    """(B, T) rewards per token and (B, T) bool: which tokens are trained on; the reward at the last of these,
    with `dense` plus TOKEN_REWARDS."""
    rollouts = [rollout for group in groups for rollout in group]
    mask_BT = padded([rollout.trained_mask for rollout in rollouts], torch.bool)
    reward_BT = functional.token_rewards(
        torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64), mask_BT
    )
    if dense:
        reward_BT = reward_BT + torch.where(
            mask_BT, padded([TOKEN_REWARDS[rollout] for rollout in rollouts]), 0.0
        )
    return reward_BT, mask_BT


def as_rows(value_BT: Tensor, groups: Sequence[Group]) -> list[list[float]]:
    """One row of numbers per rollout, as long as the rollout."""
    rollouts = [rollout for group in groups for rollout in group]
    return [row[: len(rollout)] for row, rollout in zip(value_BT.tolist(), rollouts, strict=True)]


def by_group(values: Tensor, groups: Sequence[Group]) -> list[list[float]]:
    """One list of numbers per group, from one number per rollout."""
    remaining = iter(values.tolist())
    return [[next(remaining) for _ in group] for group in groups]


def whiten_rows(
    rows: Sequence[list[float]],
    rollouts: Sequence[Rollout],
    eps: float = 1e-8,
    left_out: Sequence[Collection[int]] = (),
) -> None:
    """Whitening in place, of one row per rollout: mean 0 and variance 1 over all trained tokens but those at
    the places `left_out` (per rollout), 0 at the others; equal tokens become 0."""
    flat = torch.tensor([a for row in rows for a in row], dtype=torch.float64)
    masks = [list(rollout.trained_mask) for rollout in rollouts]
    for trained, places in zip(masks, left_out):
        for place in places:
            trained[place] = False
    mask = torch.tensor([keep for trained in masks for keep in trained])
    whitened = iter(functional.whiten(flat, mask, eps=eps).tolist())
    for row in rows:
        row[:] = [next(whitened) for _ in row]


def set_token_advantages(groups: Sequence[Group], rows: Sequence[list[float]]) -> list[list[float]]:
    """Write TOKEN_ADVANTAGES, one row per rollout, in order. Returns their means over trained tokens, as the
    advantages of the rollouts."""
    remaining = iter(rows)
    for group in groups:
        for rollout in group:
            TOKEN_ADVANTAGES.set(rollout, next(remaining))
    return [
        [mean([a for a, t in zip(TOKEN_ADVANTAGES[r], r.trained_mask, strict=True) if t]) for r in group]
        for group in groups
    ]


@dataclass(frozen=True)
class GroupRelative(AdvantageEstimator):
    """Base of the estimators that compare the rollouts of a prompt."""

    def check(self, phase: PhaseContext) -> None:
        if phase.rollout.samples and phase.group_size < 2:
            raise ConfigError(
                f"group_size: {phase.group_size} with advantage {self.name!r} gives no signal, because it "
                "compares the rollouts of a prompt; "
                "use 2 or more, or an advantage without a group baseline (reinforce)"
            )


@register("grpo")
@dataclass(frozen=True)
class GRPO(GroupRelative):
    """GRPO's group-relative advantage: A_i = (r_i - mean_G r) / (std r + eps).

    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2. It leaves std and eps open: `unbiased` true with
    eps 1e-6 is verl's, with 1e-4 TRL's. Baseline "leave_one_out" with scale "others" is NeMo RL's default
    (7ea279ab, nemo_rl/algorithms/advantage_estimator.py); "group" with "centred_batch", and "batch" with
    "batch", are AReaL's (4aef98d8, areal/utils/data.py, Normalization). Edge: a group of equal rewards, or of
    one rollout, gives zeros, unless the baseline is that of the batch.

    Attributes:
        scale: "group" divides by the group's std, "others" by the std of the other rollouts of the group,
            "batch" by the std of all rewards of the step (Lite PPO, arXiv:2508.08221), "centred_batch" by the
            root mean square of all r - baseline; "none" does not divide (Dr.GRPO, arXiv:2503.20783).
        baseline: The mean of the "group", of the other rollouts of the group ("leave_one_out"), or of all
            rewards of the step ("batch").
        whiten: Normalises the result once more, over all trained tokens of the step (AReaL's adv_norm with
            mean and std of the batch).
    """

    eps: float = 1e-6
    unbiased: bool = True
    scale: Literal["group", "others", "batch", "centred_batch", "none"] = "group"
    baseline: Literal["group", "leave_one_out", "batch"] = "group"
    whiten: bool = False

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scales = {
            "group": "std",
            "others": "others_std",
            "batch": "batch_std",
            "centred_batch": "centred_batch_std",
            "none": "none",
        }
        baseline = {"group": "mean", "leave_one_out": "leave_one_out", "batch": "batch_mean"}[self.baseline]
        reward_B, group_B = flat_rewards(groups)
        scale = scales[self.scale]
        values_B = functional.group_advantages(
            reward_B, group_B, baseline=baseline, scale=scale, eps=self.eps, unbiased=self.unbiased
        )
        if self.whiten and len(values_B):
            values_B = functional.reinforce_pp_advantages(values_B, flat_lengths(groups), None)
        return by_group(values_B, groups)


@register("pass_at_k_max")
@dataclass(frozen=True)
class PassAtKMax(GroupRelative):
    """Pass@k by the maximum: A = (best - second best) / (std_G r + eps) for the best rollout of a group, 0
    for the others; k is the group size.

    `scale` "none" does not divide. Paper: Tang et al. 2025, arXiv:2503.19595; grpo_passk of verl-project/verl
    1dda039b. Edge: a group with two best rollouts gives zeros, so that of 0/1 rewards only groups with a
    single correct rollout have a signal.
    """

    eps: float = 1e-6
    scale: Literal["group", "none"] = "group"

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scale = "std" if self.scale == "group" else "none"
        return by_group(
            functional.pass_at_k_max_advantages(*flat_rewards(groups), scale=scale, eps=self.eps), groups
        )


@register("best_and_worst")
@dataclass(frozen=True)
class BestAndWorst(GRPO):
    """PODS's max-variance down-sampling: GRPO on the `keep` rollouts of each group whose rewards have the
    largest variance.

    These are the h best and keep - h worst rollouts for some h. The others are left out of the loss and of
    the statistics. Paper: Xu et al. 2025 (PODS), arXiv:2504.13818, theorem 1 and algorithm 1. Edge: a group
    of at most `keep` rollouts is trained on whole.
    """

    keep: int = 4

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(f"keep={self.keep} must be 2 or more: the best and the worst rollout")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        chosen = by_group(functional.best_and_worst(*flat_rewards(groups), self.keep), groups)
        parts = [
            Group(g.prompt, [r for r, kept in zip(g, row) if kept], g.id)
            for g, row in zip(groups, chosen, strict=True)
        ]
        result = []
        for group, row, advantages in zip(groups, chosen, super().__call__(parts), strict=True):
            remaining = iter(advantages)
            for rollout, kept in zip(group, row, strict=True):
                if not kept:
                    rollout.leave_out([False] * len(rollout))
            result.append([next(remaining) if kept else 0.0 for kept in row])
        return result


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
    """REINFORCE with a baseline: A_i = r_i - b, b the running mean of the steps before: b <- decay * b + (1 -
    decay) * mean r.

    `decay` 0 uses no baseline (A = r). Edge: in the first step b is that step's own mean.
    Paper: Williams 1992, doi:10.1007/BF00992696, sec. 4; for language models arXiv:2402.14740, sec. 2.
    """

    state_class = ReinforceState
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1); 0 means no baseline")

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
    """REINFORCE++: A_i = (s_i - mean s) / sqrt(var s + eps) over all trained TOKENS of the step, with s_i =
    r_i, or r_i - mean_G r with `baseline`.

    With `gamma` below 1 or `token_rewards`, s is the return of each token, R_t = r_t + gamma R_{t+1}, with
    the reward, less the baseline, at the last token and TOKEN_REWARDS (the paper's KL: reward shaping
    `kl_token_reward`) at every one; advantages are per token, for token credit `per_token`. Paper: Hu 2025
    (REINFORCE++), arXiv:2501.03262, eq. 3-5 (baseline: sec. 3.2). A rollout counts once per token, with the
    unbiased variance (verl 1dda039b). Edge: with `baseline`, a group of equal rewards has s = 0.

    Attributes:
        leave_one_out: The baseline is the mean of the group's other rollouts (OpenRLHF's rloo).
    """

    baseline: bool = False
    leave_one_out: bool = False
    eps: float = 1e-8
    gamma: float = 1.0
    token_rewards: bool = False

    def __post_init__(self) -> None:
        if self.leave_one_out and not self.baseline:
            raise ValueError("leave_one_out=True is a kind of baseline; set baseline: true")

    @property
    def per_token(self) -> bool:
        """Whether the tokens of a rollout have advantages of their own."""
        return self.token_rewards or self.gamma != 1

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (
            *((TOKEN_ADVANTAGES,) if self.per_token else ()),
            *((READS_TOKEN_REWARDS,) if self.token_rewards else ()),
        )

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (TOKEN_REWARDS,) if self.token_rewards else ()

    def check(self, phase: PhaseContext) -> None:
        if self.baseline:
            super().check(phase)
        if self.per_token:
            check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        reward_B, group_B = flat_rewards(groups)
        score_B = reward_B
        if self.baseline:
            kind = "leave_one_out" if self.leave_one_out else "mean"
            score_B = functional.group_advantages(reward_B, group_B, baseline=kind, scale="none")
        if not self.per_token or not len(reward_B):
            return by_group(
                functional.reinforce_pp_advantages(score_B, flat_lengths(groups), eps=self.eps), groups
            )
        reward_BT, mask_BT = reward_tensors(groups, self.token_rewards)
        # the baseline is that of the outcome alone: token rewards are not compared within the group
        reward_BT = reward_BT + functional.token_rewards(score_B - reward_B, mask_BT)
        advantage_BT = functional.reinforce_pp_token_advantages(
            reward_BT, mask_BT, gamma=self.gamma, eps=self.eps
        )
        return set_token_advantages(groups, as_rows(advantage_BT, groups))


@register("gae")
@dataclass(frozen=True)
class GAE(AdvantageEstimator):
    """PPO's generalised advantage estimation over trained tokens, with the reward at the last one; for token
    credit `per_token`.

        delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}

    Writes TOKEN_ADVANTAGES and RETURNS (A + V, the critic's targets); the rollout's own advantage is the mean
    over its tokens. Tokens of tools and hints are skipped: the state after one is that of the next trained
    token. Paper: Schulman et al. 2016, arXiv:1506.02438, eq. 16; PPO, arXiv:1707.06347; Open-Reasoner-Zero,
    arXiv:2503.24290 (gamma = lambda = 1: A = R - V). Edge: unlike a group-relative advantage it has a signal
    in groups of equal rewards.

    Attributes:
        whiten: Normalises to mean 0 and (population) variance 1 over all trained tokens of the step.
        token_rewards: Adds TOKEN_REWARDS (reward shaping `kl_token_reward`).
        values: The aux tensor with V: `value` (a head on the policy's states, callback `critic`) or
            `model_value` (a separate model, callback `critic_model`).
    """

    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    values: Literal["value", "model_value"] = "value"
    token_rewards: bool = False

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (TOKEN_ADVANTAGES, RETURNS, *((READS_TOKEN_REWARDS,) if self.token_rewards else ()))

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.values,)

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (
            VALUE_CRITIC if self.values == "value" else VALUE_CRITIC_MODEL,
            *((TOKEN_REWARDS,) if self.token_rewards else ()),
        )

    def check(self, phase: PhaseContext) -> None:
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rollouts = [rollout for group in groups for rollout in group]
        if not rollouts:
            return [[] for _ in groups]
        reward_BT, mask_BT = reward_tensors(groups, self.token_rewards)
        value_BT = padded([rollout.signals[self.values] for rollout in rollouts])
        advantage_BT, return_BT = functional.gae(reward_BT, value_BT, mask_BT, self.gamma, self.lam)
        for rollout, returns in zip(rollouts, as_rows(return_BT, groups), strict=True):
            RETURNS.set(rollout, returns)
        rows = as_rows(advantage_BT, groups)
        if self.whiten:
            whiten_rows(rows, rollouts)
        return set_token_advantages(groups, rows)
