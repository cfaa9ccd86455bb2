"""Length rewards. A length is the number of tokens that the policy sampled (`Rollout.sampled_tokens`),
without prompt, prefix and tool output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.combine.nested import OverReward, note, note_correct, number


def cosine(at: float, span: float, start: float, end: float) -> float:
    """Half a cosine from `start` at 0 to `end` at `span`, constant beyond."""
    return wave(min(max(at, 0.0), span), span, start, end)


def wave(at: float, span: float, start: float, end: float) -> float:
    """A cosine from `start` at 0 to `end` at `span`, which goes on behind it."""
    return end + (start - end) * (1 + math.cos(math.pi * at / span)) / 2


@register("cosine_length")
@dataclass(frozen=True, kw_only=True)
class CosineLength(OverReward):
    """Cosine length reward.

        r = cos(L; 0 -> Lmax: `right`)   if correct
        r = cos(L; 0 -> Lmax: `wrong`)   if not
        r = `exceed`                     for L >= Lmax; null: the cosine goes on, and rises again

    Paper: Demystifying Long CoT, arXiv:2502.03373, sec. 4.2. The reward `of` decides correctness. Defaults
    are the paper's: correct 2 -> 1, wrong -10 -> 0, exceeding -10. `max_tokens` (Lmax) 0 is the most that
    the run samples. `unit` "characters" and `exceed` null are Open-RS's (knoveleng/open-rs at 2889c47,
    rewards.py:266-338). Edge: a truncated rollout counts as exceeding, but with `exceed` null it is like any
    other. Units of L: `unit`; Lmax is the same number in either.
    """

    unit: Literal["tokens", "characters"] = "tokens"
    max_tokens: int = 1024
    right: tuple[float, float] = (2.0, 1.0)
    wrong: tuple[float, float] = (-10.0, 0.0)
    exceed: float | None = -10.0

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise ValueError(f"max_tokens: must not be negative, got {self.max_tokens}")
        super().__post_init__()

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        self.longest(phase)

    def longest(self, phase: PhaseContext) -> int:
        """Lmax. Raises ConfigError where neither the reward nor the sampling names one."""
        most = self.max_tokens or int(getattr(phase.sampling, "max_tokens", 0) or 0)
        if most <= 0:
            raise ConfigError(
                "rewards: 'cosine_length' max_tokens: the longest completion is not known; set it (tokens), "
                "or use a sampling policy with `max_tokens`"
            )
        return most

    def __call__(self, rollout: Rollout) -> float:
        most = self.max_tokens or self.longest(self.run)
        correct = note_correct(self, rollout, self.inner.correct(rollout, number(self.inner, rollout)))
        length = rollout.sampled_tokens if self.unit == "tokens" else len(rollout.text)
        ends = self.right if correct else self.wrong
        if self.exceed is None:
            return wave(length, most, *ends)
        return self.exceed if rollout.truncated or length >= most else cosine(length, most, *ends)


@register("length_budget")
@dataclass(frozen=True, kw_only=True)
class LengthBudget(OverReward):
    """LCPO: correctness with a length budget.

        exact:  r = correct - alpha |n_gold - n|
        max:    r = correct clip(alpha (n_gold - n) + delta, 0, 1)

    n_gold: `row.meta["tokens"]`, else `tokens`; correct: the score of the reward `of`.
    Paper: L1, arXiv:2503.04697, eqs. 1 and 2 (LCPO-Exact, LCPO-Max). Edge: in mode "exact" a wrong answer of
    length n_gold gets 0, and r is at least -1. Units: alpha is per token. A rollout is correct where `of`
    says so, whatever its length.
    """

    mode: Literal["exact", "max"] = "exact"
    tokens: int = 512
    alpha: float = 0.0003
    delta: float = 0.5

    def __post_init__(self) -> None:
        _positive("tokens", self.tokens)
        super().__post_init__()

    def __call__(self, rollout: Rollout) -> float:
        left = int(rollout.row.meta.get("tokens", self.tokens)) - rollout.sampled_tokens
        correct = number(self.inner, rollout)
        note_correct(self, rollout, self.inner.correct(rollout, correct))
        if self.mode == "max":
            return correct * min(max(self.alpha * left + self.delta, 0.0), 1.0)
        return max(correct - self.alpha * abs(left), -1.0)


@register("length_range")
@dataclass(frozen=True, kw_only=True)
class LengthRange(Reward):
    """Penalty for a length outside a range.

        r = 0                           if low <= L <= high
        r = -min(1, distance / scale)   else

    `scale` 0 is the bound that is missed. `row.meta["length"]` = [low, high] overrides the fields.
    Paper: Prompt-based length control, arXiv:2308.12030 (rule reward; the scale is ours). DAPO's soft
    overlong punishment (arXiv:2503.14476, eq. 13) is high = Lmax - cache and scale = cache. Edge: a truncated
    rollout scores -1. Units: tokens.
    """

    reads_answer: ClassVar[bool] = False
    low: int = 0
    high: int = 1024
    scale: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.scale < 0 or not (self.scale or self.high):
            raise ValueError(
                "length_range: need 0 <= low <= high, scale >= 0 and one of high and scale above 0, got "
                f"low={self.low}, high={self.high}, scale={self.scale}"
            )

    def __call__(self, rollout: Rollout) -> float:
        low, high = rollout.row.meta.get("length", (self.low, self.high))
        if rollout.truncated:
            return -1.0
        tokens = rollout.sampled_tokens
        if low <= tokens <= high:
            return 0.0
        missed = low if tokens < low else high
        return -min(1.0, abs(tokens - missed) / (self.scale or max(missed, 1)))


def arch(x: float, peak: float) -> float:
    """1 - (1 - x / p)^2 up to x = p, then 1 - 2 ((x - p) / (1 - p))^2: rises from 0 to 1 at the peak p, falls
    to -1 at x = 1."""
    return 1 - (1 - x / peak) ** 2 if x <= peak else 1 - 2 * ((x - peak) / (1 - peak)) ** 2


@register("format_length")
@dataclass(frozen=True, kw_only=True)
class FormatLength(OverReward):
    """Format-length surrogate for a gold answer.

        r = credit f + l   if f > 0
        r = min(0, l)      else
        l = 1 - (1 - x / p)^2               for x <= p
        l = 1 - 2 ((x - p) / (1 - p))^2     for x > p

    x = n / max_tokens, n in tokens; f in [0, 1] is the score of the format reward `of`. The gold answer is
    not read. Paper: Xin et al. 2025, arXiv:2505.19439 (format-length surrogate); released code: credit 0.5, p
    0.5, max_tokens the longest completion. Deviates: rewards/DEVIATIONS.md. Edge: n beyond `max_tokens`, or a
    truncated rollout, counts as max_tokens. Range [-1, 1 + credit].
    """

    reads_answer: ClassVar[bool] = False
    decides: ClassVar[bool] = False
    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "tag_format"})
    credit: float = 0.5
    peak: float = 0.5
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if not 0 < self.peak < 1 or self.max_tokens <= 0:
            raise ValueError(
                f"peak, max_tokens: must be in (0, 1) and above 0, got {self.peak} and {self.max_tokens}"
            )
        super().__post_init__()

    def __call__(self, rollout: Rollout) -> float:
        form = number(self.inner, rollout)
        length = arch(
            1.0 if rollout.truncated else min(1.0, rollout.sampled_tokens / self.max_tokens), self.peak
        )
        note(rollout, "form", form)
        note(rollout, "length", length)
        return self.credit * form + length if form > 0 else min(0.0, length)


def _positive(name: str, value: int) -> None:
    if value <= 0:
        raise ValueError(f"{name}: must be positive, got {value}")
