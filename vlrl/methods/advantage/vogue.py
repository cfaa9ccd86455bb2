"""More for what the policy would not say of the clean picture, and for what it is unsure of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods._tokens import check_credit
from vlrl.methods.advantage.grpo import GRPO, mean
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


def divergence(seen: float, other: float) -> float:
    """(e^d - 1) d / 2, d = other - seen: for tokens drawn as seen its mean is half the sum of both KL divergences. Never negative."""
    d = max(-20.0, min(20.0, other - seen))
    return math.expm1(d) * d / 2


@register("vogue")
@dataclass(frozen=True)
class VisualUncertainty(GRPO):
    """A_t = A + min(a_v u_t, |A| / b_v) + min(a_e H_t, |A| / b_e), A GRPO's, H_t the token's entropy; u_t only on the noisy picture, else 0.

    u_t estimates (KL(noisy || raw) + KL(raw || noisy)) / 2 from the token alone: (e^d - 1) d / 2, d = log pi_raw(y_t) - log pi_noisy(y_t).
    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444: capped bonuses for the noisy branch's advantage and for entropy, a_v 1, b_v 2, a_e 0.4, b_e 2 as
    its reviews quote them; the equations could not be read. Deviates: the divergence is estimated from sampled tokens, not summed over the
    vocabulary; that both branches get the entropy bonus is our reading. For strategy `vogue`, credit `per_token`. Edge: A = 0 stays 0.
    """

    writes_tokens = True
    a_v: float = 1.0
    b_v: float = 2.0
    a_e: float = 0.4
    b_e: float = 2.0
    needs = ("clean_logp", "entropy")

    def __post_init__(self) -> None:
        if min(self.a_v, self.a_e) < 0 or min(self.b_v, self.b_e) <= 1:
            raise ValueError(f"a_v={self.a_v}, a_e={self.a_e} must not be negative; b_v={self.b_v}, b_e={self.b_e} must be above 1, or signs turn")

    def check(self, run: Run) -> None:
        super().check(run)
        if run.strategy.name != "vogue":
            raise ConfigError(f"advantage vogue reads pictures that strategy {run.strategy.name!r} does not disturb; use strategy: {{name: vogue}}")
        check_credit(run, "vogue")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group, row in zip(groups, super().__call__(groups), strict=True):
            for rollout, advantage in zip(group, row, strict=True):
                rollout.info["token_advantages"] = self.of_tokens(rollout, advantage)
            out.append([mean(rollout.info["token_advantages"]) for rollout in group])
        return out

    def of_tokens(self, rollout: Rollout, advantage: float) -> list[float]:
        """The advantage with its bonuses, by token."""
        noisy, size, signals = rollout.info.get("noisy", False), abs(advantage), rollout.signals
        return [
            advantage + (min(self.a_v * divergence(seen, raw), size / self.b_v) if noisy else 0.0) + min(self.a_e * unsure, size / self.b_e)
            for seen, raw, unsure in zip(signals["old_logp"], signals["clean_logp"], signals["entropy"], strict=True)
        ]
