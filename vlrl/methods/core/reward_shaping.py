"""Reward shaping: changes of the total reward of a group's rollouts.

soft_overlong      DAPO's penalty before the length limit
overlong_filter    DAPO's overlong filtering: no loss on truncated completions
kl_in_reward       the KL to the reference as a penalty on the rollout, with an adaptive coefficient if wanted
kl_token_reward    the KL to the reference as a reward of every token
last_turn_reward   one reward for all rollouts of a conversation
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vlrl.functional import adaptive_kl_coef, overlong_penalty
from vlrl.methods.core.sampling import completion_limit
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, StepContext
from vlrl.plugins.episodes import CONVERSATION, ONE_REWARD_PER_CONVERSATION, SEGMENT
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, State, StepCounts, transient
from vlrl.services.lazy import torch
from vlrl.types import Group, Rollout

KL_IN_REWARD = Capability("kl_in_reward", hint="reward_shaping: {kl: {name: kl_in_reward}}")
MASKS_TRUNCATED = Capability(
    "masks_truncated", hint="reward_shaping: {truncated: {name: overlong_filter}}"
)  # acts on loss masks, not on rewards
READS_TOKEN_REWARDS = Capability(
    "reads_token_rewards", hint="advantage: {name: reinforce_pp, token_rewards: true} (also gae, remax)"
)
TOKEN_REWARDS: Annotation[list] = Annotation(
    "token_rewards",
    list,
    hint="reward_shaping: {kl: {name: kl_token_reward}}",
    doc="rewards per token, besides the rollout's own at its last one",
)


def check_single_length_penalty(run: PhaseContext) -> None:
    """Raise ConfigError for more than one reward shaping that punishes length."""
    slots = [slot for slot, shaping in run.reward_shaping.items() if shaping.punishes_length]
    if len(slots) > 1:
        raise ConfigError(
            f"reward_shaping: {' and '.join(slots)} both punish length, and no source sums them; drop one "
            f"of them ({slots[1]}: null)"
        )


@register("soft_overlong")
@dataclass(frozen=True)
class SoftOverlong(RewardShaping):
    """DAPO's soft overlong punishment: r + factor * p(n), n the number of sampled tokens.

        p = 0 for n <= limit - buffer,  -(n - (limit - buffer)) / buffer up to the limit,  -1 beyond

    `limit` 0 takes the longest completion that may be sampled. `buffer` is where the penalty begins, before
    the limit: tokens, or below 1 a share of the limit.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13 (limit 20480, buffer 4096: a share of 0.2).
    """

    buffer: float = 0.2
    limit: int = 0
    factor: float = 1.0
    punishes_length = True
    waits_for = "answers near the length limit"

    def check(self, phase: PhaseContext) -> None:
        check_single_length_penalty(phase)
        limit = self.longest(phase)
        if not 0 < self.buffer <= limit:
            raise ConfigError(
                f"reward_shaping: 'soft_overlong' buffer={self.buffer} must be above 0 (a share below 1, "
                f"else tokens) and at most {limit}, "
                "the longest completion"
            )

    def longest(self, run: PhaseContext) -> int:
        """The limit in tokens. Raises ConfigError if it is not known."""
        return completion_limit(run, self.limit, "reward_shaping: 'soft_overlong' limit")

    def __call__(self, group: Group) -> list[float]:
        limit = self.limit or self.longest(self.run)
        buffer = self.buffer * limit if self.buffer < 1 else self.buffer
        penalties = overlong_penalty(
            torch.tensor([rollout.sampled_tokens for rollout in group]), limit, buffer
        ).tolist()
        return [
            rollout.reward + self.factor * penalty for rollout, penalty in zip(group, penalties, strict=True)
        ]


@register("overlong_filter")
@dataclass(frozen=True)
class OverlongFilter(RewardShaping):
    """DAPO's overlong filtering: completions that were cut off at the length limit carry no loss; rewards
    stay as they are.

    They still count in the baseline of their group, but not in the denominators of the loss.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, sec. 3.4; mask_truncated_completions of TRL f2cd5771
    (trl/trainer/grpo_trainer.py). State: the counts of the step, for the log.
    """

    state_class = StepCounts
    provides = (MASKS_TRUNCATED,)

    def __call__(self, group: Group) -> list[float]:
        for rollout in group:
            self.state.add(seen=1, masked=rollout.truncated)
            if rollout.truncated:
                rollout.leave_out([False] * len(rollout))
        return group.rewards

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        masked = self.state.share("masked", "seen")
        return {"overlong_filter/masked": masked} if self.state.logged else {}


KL_ESTIMATES: dict[str, Callable[[float], float]] = {  # of u = log ref - log old, in nats
    "k1": lambda u: -u,
    "k2": lambda u: u * u / 2,
    "k3": lambda u: math.expm1(u) - u,
    "abs": abs,
}
Estimator = Literal["k1", "k2", "k3", "abs"]


def token_kl(rollout: Rollout, estimator: str) -> list[float]:
    """The estimate of KL(pi_old || pi_ref) at every trained token (nats); 0 at the others."""
    estimate = KL_ESTIMATES[estimator]
    logs = [
        ref - old for ref, old in zip(rollout.signals["ref_logp"], rollout.signals["old_logp"], strict=True)
    ]
    return [estimate(u) if trained else 0.0 for u, trained in zip(logs, rollout.trained_mask)]


@dataclass
class KLState(State):
    """`beta` is the coefficient in use (None: that of the config); `step` has the KL of every rollout of the
    step; `kl` is their last mean."""

    beta: float | None = None
    step: list[float] = transient(factory=list)
    kl: float | None = transient()


@dataclass(frozen=True)
class KLReward(RewardShaping):
    """Base of the rewards for a small KL: the coefficient, which follows Ziegler's controller where `target`
    is set.

    With `target` above 0 (nats per rollout), after each step beta <- beta (1 + clip(KL / target - 1, -0.2,
    0.2) n / horizon) for the step's n rollouts, those of all ranks, with KL the mean over them of sum_t k(t).
    Paper: Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2 (targets of 6 to 14 nats); AdaptiveKLController of
    verl-project/verl 1dda039b, whose KL is the mean per token.
    """

    state_class = KLState
    beta: float = 0.05
    estimator: Estimator = "k1"
    target: float = 0.0
    horizon: float = 10_000.0
    needs = ("ref_logp",)

    def __post_init__(self) -> None:
        if self.target < 0 or self.horizon <= 0:
            raise ValueError(
                f"target={self.target} must not be negative (0: a fixed coefficient), "
                f"horizon={self.horizon} above 0"
            )

    @property
    def coefficient(self) -> float:
        """beta as it stands."""
        return self.beta if self.state.beta is None else self.state.beta

    def token_kl(self, rollout: Rollout) -> list[float]:
        """k(t) of every token; noted for the controller."""
        values = token_kl(rollout, self.estimator)
        self.state.step.append(math.fsum(values))
        return values

    def end_step(self, run: StepContext) -> None:
        state, everyone = self.state, run.gather_and_clear(self.state.step)
        state.kl = math.fsum(everyone) / len(everyone) if everyone else None
        if self.target and state.kl is not None:
            state.beta = adaptive_kl_coef(
                self.coefficient, state.kl, self.target, len(everyone), self.horizon
            )

    def metrics(self) -> dict[str, float]:
        return {
            "kl_reward/beta": self.coefficient,
            **({} if self.state.kl is None else {"kl_reward/kl": self.state.kl}),
        }


@register("kl_in_reward")
@dataclass(frozen=True)
class KLInReward(KLReward):
    """The KL to the reference as a penalty of the rollout: r - beta sum_t k(t), k an estimate of KL(pi_old ||
    pi_ref) at token t.

    `target` makes beta follow the measured KL (see `KLReward`).
    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 3 (k1). With `estimator` k1 its policy gradient is that
    of the KL; with the others it is not.
    """

    provides = (KL_IN_REWARD,)

    def __call__(self, group: Group) -> list[float]:
        return [rollout.reward - self.coefficient * math.fsum(self.token_kl(rollout)) for rollout in group]


@register("kl_token_reward")
@dataclass(frozen=True)
class KLTokenReward(KLReward):
    """The KL to the reference as a reward of every token, r_t = -beta k(t), in TOKEN_REWARDS; the rollouts'
    own rewards stay as they are.

    For advantages that take rewards per token (`reinforce_pp`, `gae`, `remax` with `token_rewards`), which
    normalise after the KL is in. `target` makes beta follow the measured KL (see `KLReward`).
    Paper: Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155, eq. 2; Hu 2025 (REINFORCE++), arXiv:2501.03262,
    eq. 3 (k1).
    """

    provides = (KL_IN_REWARD, TOKEN_REWARDS)
    requires = (READS_TOKEN_REWARDS,)

    def __call__(self, group: Group) -> list[float]:
        for rollout in group:
            TOKEN_REWARDS.set(rollout, [-self.coefficient * k for k in self.token_kl(rollout)])
        return group.rewards


@register("last_turn_reward")
@dataclass(frozen=True)
class LastTurnReward(RewardShaping):
    """All rollouts of a conversation get the reward of its last one: r_segment = r of the conversation's last
    segment.

    vlrl original; for rollout strategy `multi_turn` with tools that reply with pictures, where a conversation
    is several rollouts. Edge: rollouts that belong to no conversation keep their reward. Units: reward.
    """

    provides = (ONE_REWARD_PER_CONVERSATION,)

    def __call__(self, group: Group) -> list[float]:
        last: dict[int, tuple[int, float]] = {}  # conversation -> (segment, reward) of its last rollout
        for rollout in group:
            if CONVERSATION.on(rollout) and SEGMENT[rollout] >= last.get(CONVERSATION[rollout], (-1, 0.0))[0]:
                last[CONVERSATION[rollout]] = (SEGMENT[rollout], rollout.reward)
        return [last[CONVERSATION[r]][1] if CONVERSATION.on(r) else r.reward for r in group]
