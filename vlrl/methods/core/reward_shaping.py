"""Reward shaping: changes of the total reward of a group's rollouts.

soft_overlong      DAPO's penalty before the length limit
kl_in_reward       the KL to the reference as a penalty on the rollout
last_turn_reward   one reward for all rollouts of a conversation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from vlrl.capabilities import Capability
from vlrl.context import RunContext
from vlrl.functional import overlong_penalty
from vlrl.methods.common.conversation import CONVERSATION, ONE_REWARD_PER_CONVERSATION, SEGMENT
from vlrl.methods.core.sampling import completion_limit
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Group, Rollout

KL_IN_REWARD = Capability("kl_in_reward", hint="reward_shaping: {kl: {name: kl_in_reward}}")


def check_single_length_penalty(run: RunContext) -> None:
    """Raise ConfigError for more than one reward shaping that punishes length."""
    slots = [slot for slot, shaping in run.reward_shaping.items() if shaping.punishes_length]
    if len(slots) > 1:
        raise ConfigError(f"reward_shaping: {' and '.join(slots)} both punish length, and no source sums them; drop one of them ({slots[1]}: null)")


@register("soft_overlong")
@dataclass(frozen=True)
class SoftOverlong(RewardShaping):
    """DAPO's soft overlong punishment: r + factor * p(n), n in tokens.

        p = 0 for n <= limit - buffer,  -(n - (limit - buffer)) / buffer up to the limit,  -1 beyond

    `limit` 0 takes the longest completion that may be sampled. `buffer` is where the penalty begins, before the limit: tokens, or below 1 a share of
    the limit.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13 (limit 20480, buffer 4096: a share of 0.2).
    """

    buffer: float = 0.2
    limit: int = 0
    factor: float = 1.0
    punishes_length = True

    def check(self, run: RunContext) -> None:
        check_single_length_penalty(run)
        limit = self.longest(run)
        if not 0 < self.buffer <= limit:
            raise ConfigError(
                f"reward_shaping: 'soft_overlong' buffer={self.buffer} must be above 0 (a share below 1, else tokens) and at most {limit}, "
                "the longest completion"
            )

    def longest(self, run: RunContext) -> int:
        """The limit in tokens. Raises ConfigError if it is not known."""
        return completion_limit(run, self.limit, "reward_shaping: 'soft_overlong' limit")

    def __call__(self, group: Group) -> list[float]:
        limit = self.limit or self.longest(self.run)
        buffer = self.buffer * limit if self.buffer < 1 else self.buffer
        penalties = overlong_penalty(torch.tensor([len(rollout) for rollout in group]), limit, buffer).tolist()
        return [rollout.reward + self.factor * penalty for rollout, penalty in zip(group, penalties, strict=True)]


KL_ESTIMATES: dict[str, Callable[[float], float]] = {  # of u = log ref - log old, in nats
    "k1": lambda u: -u,
    "k2": lambda u: u * u / 2,
    "k3": lambda u: math.expm1(u) - u,
}


def token_kl(rollout: Rollout, estimator: str) -> list[float]:
    """The estimate of KL(pi_old || pi_ref) at every trained token (nats); 0 at the others."""
    estimate = KL_ESTIMATES[estimator]
    logs = [ref - old for ref, old in zip(rollout.signals["ref_logp"], rollout.signals["old_logp"], strict=True)]
    mask: Sequence[bool] = rollout.loss_mask or [True] * len(rollout)
    return [estimate(u) if m else 0.0 for u, m in zip(logs, mask)]


@register("kl_in_reward")
@dataclass(frozen=True)
class KLInReward(RewardShaping):
    """The KL to the reference as a penalty of the rollout: r - beta sum_t k(t), k an estimate of KL(pi_old || pi_ref) at token t.

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 3 (k1). With `estimator` k1 its policy gradient is that of the KL; with k2 or k3 it is not.
    """

    beta: float = 0.05
    estimator: Literal["k1", "k2", "k3"] = "k1"
    needs = ("ref_logp",)
    provides = (KL_IN_REWARD,)

    def __call__(self, group: Group) -> list[float]:
        return [rollout.reward - self.beta * math.fsum(token_kl(rollout, self.estimator)) for rollout in group]


@register("last_turn_reward")
@dataclass(frozen=True)
class LastTurnReward(RewardShaping):
    """All rollouts of a conversation get the reward of its last one: r_segment = r of the conversation's last segment.

    vlrl original; for rollout strategy `multi_turn` with tools that reply with pictures, where a conversation is several rollouts. Edge: rollouts
    that belong to no conversation keep their reward. Units: reward.
    """

    provides = (ONE_REWARD_PER_CONVERSATION,)

    def __call__(self, group: Group) -> list[float]:
        last: dict[int, tuple[int, float]] = {}  # conversation -> (segment, reward) of its last rollout
        for rollout in group:
            if CONVERSATION.on(rollout) and SEGMENT[rollout] >= last.get(CONVERSATION[rollout], (-1, 0.0))[0]:
                last[CONVERSATION[rollout]] = (SEGMENT[rollout], rollout.reward)
        return [last[CONVERSATION[r]][1] if CONVERSATION.on(r) else r.reward for r in group]
