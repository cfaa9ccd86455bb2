"""What the shapes share that make long rollouts dearer.

One reward for all turns of a conversation.

KL as part of the reward.

A penalty that begins before the length limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from vlrl.functional import overlong_penalty
from vlrl.methods.common.limits import completion_limit
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def check_alone(run: RunContext) -> None:
    """Refuse a second penalty on length."""
    slots = [slot for slot, shape in run.reward_shaping.items() if shape.punishes_length]
    if len(slots) > 1:
        raise ConfigError(f"reward_shaping: {' and '.join(slots)} both punish length, and nobody set their sum; drop one of them ({slots[1]}: null)")


@register("last_turn_reward")
@dataclass(frozen=True)
class LastTurnReward(RewardShaping):
    """r_turn = r of the conversation's last turn.

    vlrl original; for strategy `multi_turn` with tools that answer in pictures, where a conversation is several rollouts. Edge: rollouts that are no
    conversation keep their reward. Units: reward.
    """

    joins_turns: ClassVar[bool] = True

    def __call__(self, group: Group) -> list[float]:
        last: dict[int, tuple[int, float]] = {}
        for rollout in group:
            talk, turn = rollout.info.get("conversation"), rollout.info.get("segment", 0)
            if talk is not None and turn >= last.get(talk, (-1, 0.0))[0]:
                last[talk] = (turn, rollout.reward)
        return [last[r.info["conversation"]][1] if r.info.get("conversation") is not None else r.reward for r in group]


def token_kl(rollout: Rollout, kind: str) -> list[float]:
    """The estimate of KL(pi_old || pi_ref) at every trained token (nats); 0 at the others."""
    table = {"k1": lambda u: -u, "k2": lambda u: u * u / 2, "k3": lambda u: math.expm1(u) - u}
    logs = [ref - old for ref, old in zip(rollout.signals["ref_logp"], rollout.signals["old_logp"], strict=True)]
    mask: Sequence[bool] = rollout.loss_mask or [True] * len(rollout)
    return [table[kind](u) if m else 0.0 for u, m in zip(logs, mask)]


@register("kl_in_reward")
@dataclass(frozen=True)
class KLInReward(RewardShaping):
    """r - beta sum_t k(t): the KL to the reference, estimated on the rollout, as a penalty of the whole.

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 3 (k1).  With `kind` k1 its policy gradient is that of the KL; with k2 or k3 it isn't.
    """

    beta: float = 0.05
    kind: Literal["k1", "k2", "k3"] = "k1"
    needs = ("ref_logp",)

    def __call__(self, group: Group) -> list[float]:
        return [rollout.reward - self.beta * math.fsum(token_kl(rollout, self.kind)) for rollout in group]


@register("soft_overlong")
@dataclass(frozen=True)
class SoftOverlong(RewardShaping):
    """r + factor * p(n):  p = 0 for n <= limit - buffer,  -(n - (limit - buffer)) / buffer up to the limit,  -1 beyond. n in tokens.

    `limit` 0 takes the longest completion that may be sampled; `buffer` before it the penalty begins: tokens, or below 1 a share of the limit.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13 (limit 20480, buffer 4096: a share of 0.2).
    """

    buffer: float = 0.2
    limit: int = 0
    factor: float = 1.0
    punishes_length = True
    resolved: int = field(init=False, default=0, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        check_alone(run)
        limit = completion_limit(run, self.limit, "shape.soft_overlong.limit")
        if not 0 < self.buffer <= limit:
            raise ConfigError(
                f"reward_shaping.soft_overlong.buffer={self.buffer} must be above 0 (a share below 1, else tokens) and at most {limit}, the longest completion"
            )

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "resolved", completion_limit(run, self.limit, "shape.soft_overlong.limit"))

    def __call__(self, group: Group) -> list[float]:
        limit = self.limit or self.resolved
        buffer = self.buffer * limit if self.buffer < 1 else self.buffer
        penalties = overlong_penalty(torch.tensor([len(rollout) for rollout in group]), limit, buffer).tolist()
        return [rollout.reward + self.factor * penalty for rollout, penalty in zip(group, penalties, strict=True)]
