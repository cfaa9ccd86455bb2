"""The verifier's advantage, and a little of what the policy thinks itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.advantage.grpo import GRPO, std
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("laser")
@dataclass(frozen=True)
class SelfRewarded(GRPO):
    """A = (1 - tau) A_verifier + tau A_self: GRPO on the rewards, and on r_s = beta (log pi(z | x, y) - c), cut to [0, 1].

    z is the token of shape `last_token`. A_self is 0 before step `start`, and in groups whose r_s differ by a std of `least` or less.
    With credit `per_token`: z's own advantage is 0.
    Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943; released script: tau 0.1, beta 0.1, c -23, least 0.1, 200 steps of warm-up.
    Edge: a rollout without z (truncated) has r_s 0. Log-probs in nats.
    """

    tau: float = 0.1
    beta: float = 0.1
    c: float = -23.0
    least: float = 0.1
    start: int = 0
    run: Any = field(init=False, default=None, repr=False, compare=False)
    needs = ("old_logp",)
    writes_tokens = True

    def check(self, run: Run) -> None:
        super().check(run)
        if not any(getattr(shape, "name", "") == "last_token" for shape in run.shape.values()):
            raise ConfigError("advantage laser reads a token that no shape puts behind the answers; use shape: {token: {name: last_token}}")
        if run.credit.name != "per_token":
            raise ConfigError(
                f"advantage laser sets the added token's advantage apart: it needs credit: {{name: per_token}}, got {run.credit.name!r}"
            )

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def prepare(self, groups: Sequence[Group]) -> None:
        super().prepare(groups)
        for rollout in (rollout for group in groups for rollout in group):
            rollout.info["self_reward"] = self.self_reward(rollout)
            if rollout.logp and "self_reward_at" in rollout.info:  # no engine sampled z
                rollout.logp[rollout.info["self_reward_at"]] = rollout.signals["old_logp"][rollout.info["self_reward_at"]]

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        advantages = self.joined(groups)
        for group, values in zip(groups, advantages, strict=True):
            for rollout, a in zip(group, values, strict=True):
                at = rollout.info.get("self_reward_at")
                rollout.info["token_advantages"] = [0.0 if t == at else a for t in range(len(rollout))]
        return advantages

    def joined(self, groups: Sequence[Group]) -> list[list[float]]:
        """One number per rollout."""
        judged = super().__call__(groups)
        if self.run is not None and self.run.phase_step < self.start:
            return judged
        own = [[rollout.info["self_reward"] for rollout in group] for group in groups]
        selves = super().__call__([with_rewards(group, scores) for group, scores in zip(groups, own, strict=True)])
        return [
            [(1 - self.tau) * a + self.tau * s for a, s in zip(row, mine, strict=True)] if std(scores) > self.least else row
            for row, mine, scores in zip(judged, selves, own, strict=True)
        ]

    def self_reward(self, rollout: Rollout) -> float:
        """r_s in [0, 1]."""
        at = rollout.info.get("self_reward_at")
        return 0.0 if at is None else min(1.0, max(0.0, self.beta * (rollout.signals["old_logp"][at] - self.c)))


def with_rewards(group: Group, rewards: Sequence[float]) -> Group:
    """The group with other rewards."""
    return Group(group.prompt, [replace(rollout, reward=r) for rollout, r in zip(group, rewards, strict=True)], group.id)
