"""Sampling policies: the sampling parameters of each completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import SamplingPolicy
from vlrl.types import Prompt, Sampling


def completion_limit(run: PhaseContext, own: int, where: str) -> int:
    """`own`, or the `max_tokens` of the run's sampling where `own` is 0. Raises ConfigError, naming the
    setting `where`, if neither is known."""
    limit = own or int(getattr(run.sampling, "max_tokens", 0) or 0)
    if limit <= 0:
        raise ConfigError(
            f"{where}: the longest completion is not known; set it (tokens), or use a sampling policy with "
            "`max_tokens`"
        )
    return limit


@register("plain")
@dataclass(frozen=True)
class Plain(SamplingPolicy):
    """y_t ~ softmax(z_t / temperature) after top-k, top-p and min-p: the same for every prompt and attempt.

    vlrl original. Edge: `temperature` 0 is greedy; a list of [position, value] steps anneals it; `top_k` 0,
    `top_p` 1, `min_p` 0 are off. Units: `max_tokens`, `min_tokens` and positions in completion tokens.
    """

    temperature: float | tuple[tuple[int, float], ...] = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 64
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    bad_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    guided: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        temperatures = (
            (self.temperature,)
            if isinstance(self.temperature, (int, float))
            else tuple(value for _, value in self.temperature)
        )
        guided_kinds = {"choice", "regex", "json"}
        rules = {
            "temperature": (
                bool(temperatures) and all(t >= 0 for t in temperatures),
                "0 (greedy) or more, or [[0, first], [position, next], ...]",
            ),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]; 1 is off"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]; 0 is off"),
            "max_tokens": (self.max_tokens >= 1, "1 or more"),
            "min_tokens": (0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            "guided": (
                self.guided is None or (len(self.guided) == 1 and set(self.guided) <= guided_kinds),
                "one of choice, regex, json",
            ),
        }
        for name, (valid, allowed) in rules.items():
            if not valid:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    def check(self, phase: PhaseContext) -> None:
        if self.temperature == 0 and phase.rollout.samples and phase.group_size > 1:
            raise ConfigError(
                f"sampling.temperature: 0 makes all {phase.group_size} rollouts of a prompt the same, so "
                "there is nothing to compare; use a "
                "temperature above 0, or group_size: 1"
            )

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_ids=self.stop_ids,
            bad_ids=self.bad_ids,
            top_logprobs=self.top_logprobs,
            guided=self.guided,
        )
