"""LaRe: latent reward. The outcome reward is decomposed into a sum over segments, as a function of
performance factors.

Paper: Qu et al. 2024 (LaRe), arXiv:2412.11120; the paper and its code are of control tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.stages import State, TokenCredit
from vlrl.services.lazy import torch
from vlrl.types import Group, Rollout

Factor = Callable[[str, Rollout], float]

# Performance factors of a segment of text, numbers of about unit size. A plug-in file may add factors, such
# as those that a language model wrote.
FACTORS: dict[str, Factor] = {
    "one": lambda text, rollout: 1.0,
    "length": lambda text, rollout: len(text) / 16,
    "digits": lambda text, rollout: float(len(re.findall(r"\d", text))),
    "tags": lambda text, rollout: float(len(re.findall(r"</?\w+>", text))),
    "words_of_question": lambda text, rollout: float(
        sum(word in text for word in set(re.findall(r"\w{3,}", rollout.row.question)))
    ),
    "position": lambda text, rollout: len(text) / max(len(rollout.text), 1),
}


@dataclass
class LareState(State):
    """The moments of the regression in float64: `xx` (factors, factors) is sum x x^T, `xy` (factors,) is sum
    x r; None before the first group."""

    xx: torch.Tensor | None = None
    xy: torch.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {
            name: value.tolist() for name, value in (("xx", self.xx), ("xy", self.xy)) if value is not None
        }

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        self.xx, self.xy = (
            torch.tensor(values[name], dtype=torch.float64) if name in values else None
            for name in ("xx", "xy")
        )


@register("lare")
@dataclass(frozen=True)
class LaRe(TokenCredit):
    """LaRe's credit: A_{i,t} = A_i + weight * n (p_s - mean_s p) for t in segment s,  p_s = w . f(segment),
    with w fitted so that sum_s p_s = r_i.

    w is a ridge regression over all rollouts so far, kept as its two moments; n is the number of segments.
    The sum of a rollout's credit stays. Paper: Qu et al. 2024 (LaRe), arXiv:2412.11120, sec. 4. Deviates:
    factors are a table of functions, not a call to a language model; the decoder is linear, not a small
    network. Each process fits the rollouts it sampled. Edge: before the first group was fitted, and in
    rollouts of one segment, the advantage is unchanged.

    Attributes:
        segment: Trained tokens of a segment.
        factors: f, names in the table FACTORS; they read the segment's text.
        decay: Forgetting of earlier rollouts.
    """

    state_class = LareState
    factors: tuple[str, ...] = ("one", "length", "digits", "tags")
    segment: int = 4
    weight: float = 0.5
    ridge: float = 1.0
    decay: float = 0.99

    def __post_init__(self) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown:
            raise ValueError(f"factors: no {unknown[0]!r}; known: {', '.join(sorted(FACTORS))}")

    def factors_of(self, rollout: Rollout) -> torch.Tensor:
        """(segments, factors) of a rollout."""
        ids = [token for token, trained in zip(rollout.ids, rollout.trained_mask) if trained]
        segments = [ids[i : i + self.segment] for i in range(0, len(ids), self.segment)]
        texts = [self.run.policy.decode(ids) for ids in segments]
        rows = [[FACTORS[name](text, rollout) for name in self.factors] for text in texts]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(texts), len(self.factors))

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        factors = [self.factors_of(rollout) for rollout in group]
        decoder_F = self.decoder()
        result = []
        for a, rollout, f_SF in zip(advantages, group, factors, strict=True):
            p_S = f_SF @ decoder_F if decoder_F is not None else torch.zeros(len(f_SF), dtype=torch.float64)
            shift = (self.weight * len(p_S) * (p_S - p_S.mean())).tolist()
            before = accumulate(rollout.trained_mask, initial=0)
            result.append(
                [
                    a + shift[t // self.segment] if trained else a
                    for t, trained in zip(before, rollout.trained_mask)
                ]
            )
        self.fit(factors, group.rewards)
        return result

    def fit(self, factors: Sequence[torch.Tensor], rewards: Sequence[float]) -> None:
        """Add a group to the regression's moments."""
        k, state = len(self.factors), self.state
        xx = (state.xx if state.xx is not None else torch.zeros(k, k, dtype=torch.float64)) * self.decay
        xy = (state.xy if state.xy is not None else torch.zeros(k, dtype=torch.float64)) * self.decay
        for f_SF, reward in zip(factors, rewards):
            total = f_SF.sum(0)
            xx, xy = xx + torch.outer(total, total), xy + total * reward
        state.xx, state.xy = xx, xy

    def decoder(self) -> torch.Tensor | None:
        """w, (factors,); None before the first group was fitted."""
        state = self.state
        if state.xx is None:
            return None
        return torch.linalg.solve(
            state.xx + self.ridge * torch.eye(len(self.factors), dtype=torch.float64), state.xy
        )
