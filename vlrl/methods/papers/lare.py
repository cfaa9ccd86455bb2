"""An outcome taken apart into factors of its segments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.registry import register
from vlrl.stages import TokenCredit
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

Factor = Callable[[str, Rollout], float]

# What a segment of text shows, as a number of about unit size. A plugin file may add to this table: there goes what a language model writes.
FACTORS: dict[str, Factor] = {
    "one": lambda text, rollout: 1.0,
    "length": lambda text, rollout: len(text) / 16,
    "digits": lambda text, rollout: float(len(re.findall(r"\d", text))),
    "tags": lambda text, rollout: float(len(re.findall(r"</?\w+>", text))),
    "words_of_question": lambda text, rollout: float(sum(word in text for word in set(re.findall(r"\w{3,}", rollout.row.question)))),
    "position": lambda text, rollout: len(text) / max(len(rollout.text), 1),
}


@register("lare")
@dataclass(frozen=True)
class LaRe(TokenCredit):
    """A_{i,t} = A_i + weight * n (p_s - mean_s p) for t in segment s,  p = w . f(segment), with w fitted so that sum_s p_s = the reward.

    Segments are `segment` tokens long; f are the `factors` (names in the table FACTORS). w is a ridge regression over all rollouts so far with
    forgetting `decay`, kept as its two moments; n is the number of segments, so that credit moves within a rollout and none is made.
    Paper: Qu et al. 2024 (LaRe), arXiv:2412.11120, sec. 4: a latent reward of performance factors, decoded and summed to the return.  Deviates:
    factors are a table of functions, which a language model may have written, not a call to one; the decoder is linear; factors see segments of text.
    Each process fits the rollouts it sampled.  Edge: until a rollout was seen, and in rollouts of one segment, the advantage as it is.
    """

    factors: tuple[str, ...] = ("one", "length", "digits", "tags")
    segment: int = 4
    weight: float = 0.5
    ridge: float = 1.0
    decay: float = 0.99
    moments: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    decode: dict[str, Callable[[Sequence[int]], str]] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown:
            raise ValueError(f"factors: no {unknown[0]!r}; known: {', '.join(sorted(FACTORS))}")

    def setup(self, run: RunContext) -> None:
        self.decode["ids"] = run.policy.decode

    def factors_of(self, rollout: Rollout) -> torch.Tensor:
        """(segments, factors) of a rollout."""
        parts = [rollout.ids[i : i + self.segment] for i in range(0, len(rollout), self.segment)]
        texts = [self.decode["ids"](part) for part in parts]
        return torch.tensor([[FACTORS[name](text, rollout) for name in self.factors] for text in texts], dtype=torch.float64)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        found = [self.factors_of(rollout) for rollout in group]
        weights = self.fitted()
        result = []
        for a, rollout, f_SF in zip(advantages, group, found, strict=True):
            p_S = f_SF @ weights if weights is not None else torch.zeros(len(f_SF), dtype=torch.float64)
            shift = (self.weight * len(p_S) * (p_S - p_S.mean())).tolist()
            result.append([a + shift[t // self.segment] for t in range(len(rollout))])
        self.learn(found, group.rewards)
        return result

    def learn(self, found: Sequence[torch.Tensor], rewards: Sequence[float]) -> None:
        """Take a group into the regression's moments."""
        k = len(self.factors)
        xx = self.moments.get("xx", torch.zeros(k, k, dtype=torch.float64)) * self.decay
        xy = self.moments.get("xy", torch.zeros(k, dtype=torch.float64)) * self.decay
        for f_SF, reward in zip(found, rewards):
            total = f_SF.sum(0)
            xx, xy = xx + torch.outer(total, total), xy + total * reward
        self.moments.update(xx=xx, xy=xy)

    def fitted(self) -> torch.Tensor | None:
        """The decoder's weights, or None before anything was seen."""
        if not self.moments:
            return None
        return torch.linalg.solve(self.moments["xx"] + self.ridge * torch.eye(len(self.factors), dtype=torch.float64), self.moments["xy"])

    def state_dict(self) -> dict[str, Any]:
        return {key: value.tolist() for key, value in self.moments.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.clear()
        self.moments.update({key: torch.tensor(value, dtype=torch.float64) for key, value in state.items()})
