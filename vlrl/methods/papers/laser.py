"""LaSeR: last-token self-rewarding. The probability of one token after the answer learns to be the policy's
own verdict, and joins the advantage.

    laser.last_token      reward shaping: appends the token z to every finished rollout
    laser.self_rewarded   advantage: GRPO on the verifier's reward, mixed with GRPO on the self-reward read at
    z
    laser                 loss term: fits the self-reward to the verdict

Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943, with released code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.functional.exact import std
from vlrl.methods.common.schedule import check_begins, steps_of
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, LossTerm, RewardShaping, State, transient
from vlrl.services.lazy import torch
from vlrl.types import Group, LossInputs, Rollout, UnreducedLoss

SELF_REWARD_AT: Annotation[int] = Annotation(
    "laser.self_reward_at",
    int,
    hint="reward_shaping: {token: {name: laser.last_token}}",
    doc="position of the appended token z in the rollout",
)
SELF_REWARD: Annotation[float] = Annotation(
    "laser.self_reward",
    float,
    hint="advantage: {name: laser.self_rewarded}",
    doc="the self-reward r_s of the rollout, in [0, 1]",
)


@register("laser.last_token")
@dataclass(frozen=True)
class LaserLastToken(RewardShaping):
    """LaSeR's last token: appends the token z to every finished rollout y, where `laser` and
    `laser.self_rewarded` read log pi(z | x, y).

    Rewards are unchanged. SELF_REWARD_AT is the position of z; its temperature is 1, and its advantage is 0
    (`laser.self_rewarded`). `token` is a text that the tokenizer encodes as a single, special token which no
    answer uses.
    Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943 (last-token self-rewarding); released script:
    <|vision_start|> of Qwen's tokenizer. Edge: truncated rollouts get no z. Put this shaping last: lengths,
    and the number of tokens in the loss, grow by one.
    """

    token: str = "<|vision_start|>"
    provides = (SELF_REWARD_AT,)

    def token_id(self) -> int:
        """The id of z. Raises ConfigError for a text that is not one token, or that ends answers."""
        tokenizer = self.run.policy.tokenizer
        ids = tokenizer.encode(self.token, add_special_tokens=False)
        if len(ids) != 1 or ids[0] in (tokenizer.eos_token_id, tokenizer.pad_token_id):
            known = ", ".join(tokenizer.all_special_tokens)
            raise ConfigError(
                f"reward_shaping: token={self.token!r} of 'laser.last_token' is not one unused token of "
                f"this tokenizer; its special tokens: {known}"
            )
        return ids[0]

    def __call__(self, group: Group) -> list[float]:
        token = self.token_id()
        for rollout in group:
            if not rollout.truncated and not SELF_REWARD_AT.on(rollout):
                append(rollout, token)
        return group.rewards


def append(rollout: Rollout, token: int) -> None:
    """Append z to y. Signals that were computed per token before are dropped."""
    n = len(rollout)
    temperature = (
        rollout.temperature if isinstance(rollout.temperature, list) else [float(rollout.temperature)] * n
    )
    SELF_REWARD_AT.set(rollout, n)
    rollout.sampled_mask = None if rollout.sampled_mask is None else [*rollout.sampled_mask, True]
    rollout.loss_mask = [*rollout.trained_mask, True]
    rollout.ids, rollout.temperature = [*rollout.ids, token], [*temperature, 1.0]
    rollout.logp = [*rollout.logp, 0.0] if rollout.logp else []
    rollout.signals.clear()


@dataclass
class LaserSelfRewardedState(State):
    """c as measured in the first step; None before, and where the config gives it."""

    c: float | None = None


@register("laser.self_rewarded")
@dataclass(frozen=True)
class LaserSelfRewarded(GRPO):
    """LaSeR's advantage: A = (1 - tau) A_verifier + tau A_self, GRPO on the rewards and on r_s = clip(beta
    (log pi(z | x, y) - c), 0, 1).

    z is the token of `laser.last_token`; log-probs are in nats. Advantages are written per token: that of z
    is 0. Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943; released script: tau 0.1, beta 0.1, c -23
    (Qwen2.5's), min_std 0.1, 200 steps of warm-up. Edge: a rollout without z (truncated) has r_s 0.

    Attributes:
        start: A = A_verifier before this step of the phase (below 1: share of the phase).
        min_std: A = A_verifier in groups whose r_s have this std or less.
        c: The reference's log-prob of z; None: its mean over the rollouts of the first step, with the weights
            that the phase starts from.
    """

    state_class = LaserSelfRewardedState
    tau: float = 0.1
    beta: float = 0.1
    c: float | None = None
    min_std: float = 0.1
    start: float = 0
    needs = ("old_logp",)
    provides = (TOKEN_ADVANTAGES, SELF_REWARD)
    requires = (SELF_REWARD_AT,)

    @property
    def constant(self) -> float | None:
        """c: the config's, else the measured one; None before the first step."""
        return self.state.c if self.c is None else self.c

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_begins(phase, f"advantage: {self.name!r} start", self.start)
        check_token_credit(phase, self.name)

    def prepare(self, groups: Sequence[Group]) -> None:
        super().prepare(groups)
        if self.constant is None:
            found = [
                rollout.signals["old_logp"][at]
                for group in groups
                for rollout in group
                if (at := SELF_REWARD_AT.get(rollout)) is not None
            ]
            self.state.c = self.run.mean(math.fsum(found), len(found))
        for rollout in (rollout for group in groups for rollout in group):
            SELF_REWARD.set(rollout, self.self_reward(rollout))
            at = SELF_REWARD_AT.get(rollout)
            if rollout.logp and at is not None:  # no engine sampled z
                rollout.logp[at] = rollout.signals["old_logp"][at]

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        advantages = self.mixed(groups)
        for group, values in zip(groups, advantages, strict=True):
            for rollout, a in zip(group, values, strict=True):
                at = SELF_REWARD_AT.get(rollout)
                TOKEN_ADVANTAGES.set(rollout, [0.0 if t == at else a for t in range(len(rollout))])
        return advantages

    def mixed(self, groups: Sequence[Group]) -> list[list[float]]:
        """A, one number per rollout."""
        by_verifier = super().__call__(groups)
        if self.start and self.run.phase_step < steps_of(self.start, self.run):
            return by_verifier
        scores = [[SELF_REWARD[rollout] for rollout in group] for group in groups]
        by_self = super().__call__(
            [with_rewards(group, values) for group, values in zip(groups, scores, strict=True)]
        )
        return [
            [(1 - self.tau) * a + self.tau * s for a, s in zip(verifier, own, strict=True)]
            if std(values) > self.min_std
            else verifier
            for verifier, own, values in zip(by_verifier, by_self, scores, strict=True)
        ]

    def self_reward(self, rollout: Rollout) -> float:
        """r_s in [0, 1]."""
        at = SELF_REWARD_AT.get(rollout)
        return (
            0.0
            if at is None
            else min(1.0, max(0.0, self.beta * (rollout.signals["old_logp"][at] - (self.constant or 0.0))))
        )


def with_rewards(group: Group, rewards: Sequence[float]) -> Group:
    """A copy of the group with other rewards."""
    return Group(
        group.prompt,
        [replace(rollout, reward=r) for rollout, r in zip(group, rewards, strict=True)],
        group.id,
    )


@dataclass
class LaserState(State):
    """Rollouts of the step that have the token z, of all ranks: (wrong, correct); None before the first
    step."""

    counts: tuple[int, int] | None = transient(None)


@register("laser")
@dataclass(frozen=True, kw_only=True)
class Laser(LossTerm):
    """LaSeR's self-rewarding loss: w (beta (log pi(z | x, y) - c) - 1[y is correct])^2 per rollout with the
    token z; 0 for the others.

    With `balanced`, w = n / (2 n_k) for the n rollouts of the step that have z, n_k of them as correct (or as
    wrong) as this one; so 1/2 where all are alike. The loss is 0 before step `start` of the phase (below 1 a
    share of the phase). Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943; released script: coefficient 0.1,
    beta 0.1, c -23 (a constant for the reference's log-prob; None: that of advantage `laser.self_rewarded`),
    balanced (ray_trainer.py:1351-1387). Shapes: (B,); log-probs in nats.
    """

    state_class = LaserState
    coef: float = 0.1
    beta: float = 0.1
    c: float | None = None
    balanced: bool = True
    start: float = 0
    requires = (SELF_REWARD_AT,)

    def check(self, phase: PhaseContext) -> None:
        check_begins(phase, f"loss_terms: {self.name!r} start", self.start)
        if self.c is None and not isinstance(phase.advantage, LaserSelfRewarded):
            raise ConfigError(
                "loss_terms: 'laser' reads c from advantage 'laser.self_rewarded', which this run does not "
                "use; give c, as c: -23"
            )

    @property
    def constant(self) -> float:
        """c: the config's, else the advantage's."""
        if self.c is not None:
            return self.c
        advantage: Any = self.run.advantage  # that of `check`
        return advantage.constant or 0.0

    def prepare(self, groups: Sequence[Group]) -> None:
        found = self.run.gather([finished(rollout for group in groups for rollout in group)])
        self.state.counts = (sum(wrong for wrong, _ in found), sum(right for _, right in found))

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        waiting = self.start and self.run.phase_step < steps_of(self.start, self.run)
        places = [-1 if waiting else SELF_REWARD_AT.get(rollout, -1) for rollout in x.batch.rollouts]
        correct = [float(rollout.correct) for rollout in x.batch.rollouts]
        at_B = torch.tensor([max(place, 0) for place in places], device=x.logp_BT.device)
        counts = self.state.counts or finished(x.batch.rollouts)
        weights = [
            0.0 if place < 0 else sum(counts) / (2 * max(counts[int(right)], 1)) if self.balanced else 1.0
            for place, right in zip(places, correct)
        ]
        weight_B, correct_B = (
            torch.tensor(values, device=x.logp_BT.device, dtype=x.logp_BT.dtype)
            for values in (weights, correct)
        )
        score_B = self.beta * (x.logp_BT.gather(1, at_B[:, None])[:, 0] - self.constant)
        scored_B = weight_B > 0
        loss_B = torch.where(scored_B, weight_B * (score_B - correct_B).square(), 0.0 * x.logp_BT[:, 0])
        agrees = ((score_B.detach() > 0.5) == (correct_B > 0.5))[scored_B].to(x.logp_BT.dtype)
        return UnreducedLoss(loss_B, {"laser/agrees": agrees.mean() if len(agrees) else loss_B.new_zeros(())})


def finished(rollouts: Iterable[Rollout]) -> tuple[int, int]:
    """How many of the rollouts with the token z are wrong, and correct."""
    right = [rollout.correct for rollout in rollouts if SELF_REWARD_AT.get(rollout) is not None]
    return len(right) - sum(right), sum(right)
