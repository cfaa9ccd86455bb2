"""One more token behind every finished answer, whose probability says what the policy thinks of it.

The verifier's advantage, and a little of what the policy thinks itself.

The policy learns to say, in one token, whether its answer is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from vlrl.functional.exact import std
from vlrl.methods.core.advantage import GRPO
from vlrl.registry import ConfigError, register
from vlrl.stages import LossTerm, RewardShaping
from vlrl.types import Group, LossInputs, PerToken, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("laser.last_token")
@dataclass(frozen=True)
class LaserLastToken(RewardShaping):
    """Rewards stay. Every finished rollout y gets the token z behind it: term and advantage `laser` read log pi(z | x, y) there.

    `rollout.info["self_reward_at"]` is its place; it is taken at temperature 1, and its advantage is 0 (advantage `laser`). `token`: one that the
    tokenizer knows as a single, special one and that no answer uses.
    Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943 (last-token self-rewarding); released script: <|vision_start|> of Qwen's. Edge: truncated
    rollouts get none. Put it last: lengths, and the tokens that a loss is a mean of, grow by one.
    """

    token: str = "<|vision_start|>"
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.held["run"] = run

    def token_id(self) -> int:
        """The id of z. Raises ConfigError for a text that is not one token, or that ends answers."""
        tokenizer = self.held["run"].policy.tokenizer
        ids = tokenizer.encode(self.token, add_special_tokens=False)
        if len(ids) != 1 or ids[0] in (tokenizer.eos_token_id, tokenizer.pad_token_id):
            known = ", ".join(tokenizer.all_special_tokens)
            raise ConfigError(f"shape.last_token.token: {self.token!r} is not one unused token of this tokenizer; special ones: {known}")
        return ids[0]

    def __call__(self, group: Group) -> list[float]:
        token = self.token_id()
        for rollout in group:
            if not rollout.truncated and "self_reward_at" not in rollout.info:
                self.append(rollout, token)
        return group.rewards

    def append(self, rollout: Rollout, token: int) -> None:
        """z behind y; what was computed per token before is dropped."""
        n = len(rollout)
        temperature = rollout.temperature if isinstance(rollout.temperature, list) else [float(rollout.temperature)] * n
        rollout.info["self_reward_at"] = n
        rollout.loss_mask = [*(rollout.loss_mask or [True] * n), True]
        rollout.ids, rollout.temperature = [*rollout.ids, token], [*temperature, 1.0]
        rollout.logp = [*rollout.logp, 0.0] if rollout.logp else []
        rollout.signals.clear()


@register("laser.self_rewarded")
@dataclass(frozen=True)
class LaserSelfRewarded(GRPO):
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

    def check(self, run: RunContext) -> None:
        super().check(run)
        if not any(getattr(shape, "name", "") == "laser.last_token" for shape in run.reward_shaping.values()):
            raise ConfigError(
                "advantage laser reads a token that no shape puts behind the answers; use reward_shaping: {token: {name: laser.last_token}}"
            )
        if run.token_credit.name != "per_token":
            raise ConfigError(
                f"advantage laser sets the added token's advantage apart: it needs credit: {{name: per_token}}, got {run.token_credit.name!r}"
            )

    def setup(self, run: RunContext) -> None:
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


@register("laser")
@dataclass(frozen=True, kw_only=True)
class Laser(LossTerm):
    """w (beta (log pi(z | x, y) - c) - 1[r > threshold])^2 per rollout that has the token z of shape `last_token`; 0 for the others.

    w = n / (2 n_k) with `balanced`: n rollouts of the group, n_k of them as right (or wrong) as this one; 1 where the group is of one kind.
    Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943; released script: coefficient 0.1, beta 0.1, c -23 (a constant for the reference's
    log-prob), balanced, from step 200 on (`start`). Deviates: the release balances over the batch. Shapes: (B,); log-probs in nats.
    """

    coef: float = 0.1
    beta: float = 0.1
    c: float = -23.0
    balanced: bool = True
    threshold: float = 0.5
    start: int = 0
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> PerToken:
        on = self.run is None or self.run.phase_step >= self.start
        rollouts = x.batch.rollouts
        places = [rollout.info.get("self_reward_at", -1) if on else -1 for rollout in rollouts]
        right = [float(r > self.threshold) for r in x.reward_B.tolist()]
        kinds = Counter(zip(x.group_B.tolist(), right))
        totals = Counter(x.group_B.tolist())
        weights = []
        for place, g, ok in zip(places, x.group_B.tolist(), right):
            mixed = self.balanced and kinds[g, ok] < totals[g]
            weights.append((totals[g] / (2 * kinds[g, ok]) if mixed else 1.0) if place >= 0 else 0.0)
        at_B = torch.tensor([max(place, 0) for place in places], device=x.logp_BT.device)
        weight_B, right_B = (torch.tensor(values, device=x.logp_BT.device, dtype=x.logp_BT.dtype) for values in (weights, right))
        said_B = self.beta * (x.logp_BT.gather(1, at_B[:, None])[:, 0] - self.c)
        loss_B = torch.where(weight_B > 0, weight_B * (said_B - right_B).square(), 0.0 * x.logp_BT[:, 0])
        known_B = weight_B > 0
        agree_B = ((said_B.detach() > 0.5) == (right_B > 0.5))[known_B].to(x.logp_BT.dtype)
        return PerToken(loss_B, {"laser/agrees": agree_B.mean() if len(agree_B) else loss_B.new_zeros(())})
