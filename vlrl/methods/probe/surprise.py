"""Where the policy is unsure: surprise of right and wrong rollouts, early and late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import ConfigError, register
from vlrl.types import Group

from ._judged import Judged, mean


@register("surprise")
@dataclass(frozen=True, kw_only=True)
class Surprise(Judged):
    """Mean -log pi(y_t) of sampled tokens: of right and wrong rollouts, by part of the rollout, and of the least and most likely ones.

    Sampled at temperature 1 it is an unbiased estimate of the mean token entropy, at no cost. "part/1" .. "part/n": the first to last of `parts`
    equal parts. "accuracy/likely" and "accuracy/unlikely": of the halves of all rollouts with the lower and the higher perplexity.
    Paper: entropy by stage, instance and token: arXiv:2508.07534 (the estimate by surprise is ours). Edge: rollouts without log-probs (experts) are
    left out; an estimate of nothing is left out. Units: nats per token.
    """

    parts: int = 4

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ConfigError(f"parts: {self.parts} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [(r, right) for members in self.judged(groups) for r, right in members if r.logp and len(r.logp) == len(r.ids)]
        out = {}
        for name, wanted in (("right", True), ("wrong", False)):
            chosen = [-mean(rollout.logp) for rollout, right in pairs if right is wanted]
            if chosen:
                out[name] = mean(chosen)
        for part in range(self.parts):
            tokens = [-value for rollout, _ in pairs for value in _part(rollout.logp, part, self.parts)]
            if tokens:
                out[f"part/{part + 1}"] = mean(tokens)
        return {**out, **_halves([(-mean(rollout.logp), right) for rollout, right in pairs])}


def _part(values: Sequence[float], part: int, parts: int) -> Sequence[float]:
    return values[math.floor(part * len(values) / parts) : math.floor((part + 1) * len(values) / parts)]


def _halves(pairs: list[tuple[float, bool]]) -> dict[str, float]:
    if len(pairs) < 2:
        return {}
    ordered = [float(right) for _, right in sorted(pairs, key=lambda pair: pair[0])]
    half = len(ordered) // 2
    return {"accuracy/likely": mean(ordered[:half]), "accuracy/unlikely": mean(ordered[half:])}
