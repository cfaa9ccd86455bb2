"""LUFFY: off-policy demonstrations in every group of on-policy rollouts, learned from with policy shaping.
Also the losses of RL-PLUS, ExGRPO, Guide.

    luffy                  rollout strategy: adds demonstrations to the groups
    luffy.policy_shaping   policy loss: one loss for the policy's own tokens and for those of other writers

Paper: Yan et al. 2025 (LUFFY), arXiv:2504.14945, with released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.demonstrations import (
    UNTRAINED_DEMONSTRATIONS,
    check_demonstrations,
    demonstrations,
    expert_rollout,
)
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, PerToken, Prompt


@register("luffy")
@dataclass(frozen=True)
class Luffy(Independent):
    """LUFFY's mixed-policy groups: y_1 .. y_(n-k) ~ pi(. | x) and k demonstrations (source "expert") in one
    group, scored by the same rewards.

    Paper: Yan et al. 2025 (LUFFY), arXiv:2504.14945, sec. 3; released script: n = 8 with one whole trace
    (prefix ratio 1). Checked against copies of the released code (mix_src). Deviates: traces of which the
    policy completes a part are left out. Edge: a row without a demonstration gets n samples; a prompt with
    count 0 gets an empty group. Log-probs of the expert are unknown and left empty; the temperature is that
    of the samples, as in the release, or 1 where it varies by position. Raises ConfigError where no row has a
    demonstration.

    Attributes:
        per_prompt: k, or as many as the row has.
        replace: Demonstrations take the place of samples, so that the group keeps its size n, with at least
            one sample of the policy; without it they are added.
        trained: false sets them aside for a replay buffer that may read them.
    """

    per_prompt: int = 1
    replace: bool = True
    trained: bool = True

    def __post_init__(self) -> None:
        if self.per_prompt < 1:
            raise ValueError(
                f"per_prompt={self.per_prompt} must be at least 1; use rollout: {{name: independent}} for "
                "no demonstrations"
            )

    @property
    def provides(self) -> tuple[Capability, ...]:
        return () if self.trained else (UNTRAINED_DEMONSTRATIONS,)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        check_demonstrations(run, self.name)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        texts = []
        for prompt, count in zip(prompts, counts, strict=True):
            room = max(count - 1, 0) if self.replace else self.per_prompt * bool(count)
            texts.append(demonstrations(prompt.row)[: min(self.per_prompt, room)])
        sampled_counts = [
            count - len(added) if self.replace else count for count, added in zip(counts, texts)
        ]
        groups = super().__call__(prompts, sampled_counts, run)
        for group, added in zip(groups, texts, strict=True):
            temperature = run.sampling(group.prompt, 0).temperature
            for text in added:
                rollout = expert_rollout(group.prompt, text, run)
                rollout.trained = self.trained
                rollout.temperature = (
                    temperature if isinstance(temperature, (int, float)) and temperature > 0 else 1.0
                )
                group.rollouts.append(rollout)
        return groups


@register("luffy.policy_shaping")
@dataclass(frozen=True)
class LuffyPolicyShaping(PolicyLoss):
    """LUFFY's policy shaping. Tokens of rollouts of `sources`: L = -f(u) A (1 - sg pi)^explore, clipped on
    `clip_others`. Own tokens: L = -r A.

        r = pi / pi_old;   f(u) = u / (u + beta)  (beta 0: f(u) = u),   u = pi / mu

    Paper: "one", beta 0.1: Yan et al. 2025 (LUFFY), arXiv:2504.14945, sec. 3.2; "mixture", beta 0, explore
    0.5: Dong et al. 2025 (RL-PLUS), arXiv:2508.00222; "recorded", beta 0.1: Zhan et al. 2025 (ExGRPO),
    arXiv:2510.02245, sec. 4.2; "recorded", beta 0, both clipped: Nath et al. 2025 (Guide), arXiv:2506.13923,
    whose writer is the old policy with a hint. Checked against rlplus_core_alg.py, and for LUFFY and ExGRPO
    against copies of their released mix_src. Edge: without rollouts of `sources` it is the plain (clipped)
    policy loss. |log u| is clamped to 20 for "recorded".

    Attributes:
        behaviour: mu, the writer's probability. "one": 1; "mixture": (pi_old + (pi_old + 1) / 2) / 2, half
            the old policy, half a writer who is the old policy or uniform; "recorded": that of the log-probs
            that the sampler recorded.
        clip: The loss of own tokens is `ppo_clip`'s.
    """

    sources: tuple[str, ...] = ("expert",)
    behaviour: Literal["one", "mixture", "recorded"] = "one"
    beta: float = 0.1
    explore: float = 0.0
    clip: bool = False
    clip_others: bool = False
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 0.0

    def __post_init__(self) -> None:
        if self.beta < 0 or self.explore < 0:
            raise ValueError(
                f"beta={self.beta} and explore={self.explore} must not be negative; 0 switches them off"
            )
        if self.clip_others and self.beta:
            raise ValueError(f"clip_others clips the ratio u itself: set beta to 0, not {self.beta}")

    def __call__(self, x: LossInputs) -> PerToken:
        other_B1 = torch.tensor(
            [[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device
        )
        ratio_BT = x.log_ratio_BT.exp()
        own = self.clipped(ratio_BT, x) if self.clip else PerToken(-ratio_BT * x.advantage_BT, {})
        u_BT = self.relative(x)
        f_BT = u_BT / (u_BT + self.beta) if self.beta else u_BT
        exploration_BT = (1 - x.logp_BT.detach().exp()).clamp(min=0).pow(self.explore)
        others_BT = self.clipped(u_BT, x).loss if self.clip_others else -f_BT * x.advantage_BT
        loss_BT = torch.where(other_B1, others_BT * exploration_BT, own.loss)
        return PerToken(
            loss_BT,
            {
                **own.metrics,
                "ratio": ratio_BT.detach(),
                "off_policy": other_B1.to(x.logp_BT).expand_as(ratio_BT),
            },
        )

    def clipped(self, ratio_BT: Tensor, x: LossInputs) -> PerToken:
        """PPO's clipped loss of these ratios."""
        return clipped_ratio_loss(ratio_BT, x.advantage_BT, self.low, self.high, self.dual_clip or None)

    def relative(self, x: LossInputs) -> Tensor:
        """(B, T) u = pi / mu, with gradient."""
        if self.behaviour == "recorded":
            return ((x.logp_BT - x.sampled_logp_BT) * x.mask_BT).clamp(-20, 20).exp()
        pi_BT, old_BT = x.logp_BT.exp(), x.old_logp_BT.exp()
        return pi_BT if self.behaviour == "one" else 2 * pi_BT / (old_BT + 0.5 * (old_BT + 1))
