"""Rewards that need no gold answer: form and length, turns of phrase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.registry import build, register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.nested import note, number
from vlrl_rewards.parsing import last_answer

MAX_CHARS = 100_000


def arch(x: float, peak: float) -> float:
    """1 - (1 - x / p)^2 up to x = p, then 1 - 2 ((x - p) / (1 - p))^2: from 0 up to 1 at the peak p, and down to -1 at x = 1."""
    return 1 - (1 - x / peak) ** 2 if x <= peak else 1 - 2 * ((x - peak) / (1 - peak)) ** 2


@register("format_length")
@dataclass(frozen=True, kw_only=True)
class FormatLength(Reward):
    """r = credit f + l if the form is kept, else min(0, l);  l = 1 - (1 - x / p)^2 for x <= p, 1 - 2 ((x - p) / (1 - p))^2 beyond.

    x = n / max_tokens, n in tokens; f in (0, 1] is the score of the reward `of`, which looks at form alone; no gold answer is read.
    Paper: Xin et al. 2025, arXiv:2505.19439 (format-length surrogate); released code: credit 0.5, p 0.5, max_tokens the longest completion.
    Deviates: the release asks for a boxed answer that sympy can read; here `of` says what the form is. Edge: n beyond `max_tokens` counts as
    max_tokens, so does a truncated rollout. Range [-1, 1 + credit].
    """

    reads_answer: ClassVar[bool] = False
    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "tag_format"})
    credit: float = 0.5
    peak: float = 0.5
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if not 0 < self.peak < 1 or self.max_tokens <= 0:
            raise ValueError(f"peak, max_tokens: must be in (0, 1) and above 0, got {self.peak} and {self.max_tokens}")
        object.__setattr__(self, "_inner", build(Reward, dict(self.of), "format_length.of"))

    def __call__(self, rollout: Rollout) -> float:
        form = number(self._inner, rollout)  # type: ignore[attr-defined]
        length = arch(1.0 if rollout.truncated else min(1.0, len(rollout) / self.max_tokens), self.peak)
        note(rollout, "form", form)
        note(rollout, "length", length)
        return self.credit * form + length if form > 0 else min(0.0, length)


PHRASES = (
    "i need to", "we need to", "first,", "next,", "then,", "finally,", "step by step", "let me", "let's", "let us", "suppose", "assume", "if we",
    "we know", "we can", "we have", "we get", "this means", "because", "since", "therefore", "thus", "hence", "so that", "as a result",
    "in other words", "for example", "note that", "wait", "however", "alternatively", "on the other hand", "check", "verify", "try again",
    "does not work", "doesn't work", "makes sense", "another way", "in total",
)  # fmt: skip


@register("reasoning_phrases")
@dataclass(frozen=True, kw_only=True)
class ReasoningPhrases(Reward):
    """r = max(0, min(1, k / enough) - q), k the phrases of the list that the text holds, q the share of its `n`-grams (of words) that came before.

    With `of` it is only the consolation for a wrong answer: r = r_of where r_of is above 0, else this. No answer at all: 0.
    Paper: Lv et al. 2025 (reasoning pattern reward), arXiv:2505.22653; released code: 40 phrases of which 20 are enough, 20-grams.
    Deviates: the list of phrases is our own, of the same length; the release divides the different n-grams that repeat by all n-grams, so that a
    loop costs next to nothing. Edge: a phrase counts once; the answer is not looked at, only that there is one.
    Range [0, 1], or that of the reward `of`.
    """

    reads_answer: ClassVar[bool] = False
    of: Mapping[str, Any] = field(default_factory=dict)
    phrases: tuple[str, ...] = PHRASES
    enough: int = 20
    n: int = 20

    def __post_init__(self) -> None:
        if self.enough < 1 or self.n < 1 or not self.phrases:
            raise ValueError(f"enough, n, phrases: must be above 0, got {self.enough}, {self.n} and {len(self.phrases)} phrases")
        object.__setattr__(self, "_inner", build(Reward, dict(self.of), "reasoning_phrases.of") if self.of else None)

    def __call__(self, rollout: Rollout) -> float:
        inner: Reward | None = self._inner  # type: ignore[attr-defined]
        right = number(inner, rollout) if inner is not None else 0.0
        if right > 0:
            return right
        if not any(char.isalnum() for char in last_answer(rollout.text)):
            return 0.0
        text = rollout.text[:MAX_CHARS].casefold()
        found = sum(phrase in text for phrase in self.phrases)
        words = text.split()
        grams = [tuple(words[i : i + self.n]) for i in range(len(words) - self.n + 1)]
        again = 1 - len(set(grams)) / len(grams) if grams else 0.0
        return max(0.0, min(1.0, found / self.enough) - again)
