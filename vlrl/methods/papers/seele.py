"""SEELE: rounds of rollouts that continue a part of a solution; the share of it adapts per prompt until about
half of the rollouts are correct.

The accuracy as a function of the given share is modelled by the three-parameter logistic curve of item
response theory. Paper: Li et al. 2025 (SEELE), arXiv:2509.06923.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.demonstrations import GIVEN_TOKENS, check_demonstrations, demonstrations
from vlrl.methods.core.rollout import Independent, score_into_groups
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt

START = (10.0, -0.5, 0.0)
BOUNDS = ((1e-3, -2.0, 0.0), (50.0, 1.0, 0.99))
KEY = "seele"  # of a row's memory in the run's history: the last fitted hint rate

HINT_RATE: Annotation[float] = Annotation(
    "seele.hint_rate",
    float,
    hint="rollout: {name: seele}",
    doc="on a group: the hint rate that the last round's fit gives, in [0, 1)",
)


def curve(p: Any, k: float, mu: float, b: float) -> Any:
    """f(p) = b + (1 - b) / (1 + e^(-k (p + mu))): accuracy at hint rate p."""
    return b + (1 - b) / (1 + np.exp(-k * (np.asarray(p) + mu)))


def fit(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(k, mu, b) of the curve with the least squared error to the (hint rate, accuracy) pairs; pairs with the
    same rate are averaged first."""
    rates = sorted({p for p, _ in pairs})
    accuracies = np.array([np.mean([a for p, a in pairs if p == rate]) for rate in rates])
    from scipy.optimize import least_squares  # here, because it takes a quarter of a second

    result = least_squares(
        lambda phi: curve(np.array(rates), *phi) - accuracies, START, bounds=BOUNDS, method="trf"
    )
    k, mu, b = result.x.tolist()
    return k, mu, b


def rate_for(target: float, k: float, mu: float, b: float) -> float:
    """f^-1(target); minus infinity where b, the accuracy of guessing, reaches it."""
    return -mu - math.log((1 - b) / (target - b) - 1) / k if b < target else -math.inf


@register("seele")
@dataclass(frozen=True)
class Seele(Independent):
    """SEELE's rounds: the n rollouts of a prompt are sampled in `rounds`; those of a round continue the first
    round(p |y|) parts of the solution y.

        f(p) = b + (1 - b) / (1 + e^(-k (p + mu))),   p: f(p) = target, clamped to [0, (|y| - 1) / |y|]

    y is the row's first demonstration; f is fitted to the prompt's rounds. The first p is (|y| - 1) / |y|,
    later the last one fitted. GIVEN_TOKENS is for token weight `mask_given_prefix` and loss term nll with
    given: true. Paper: Li et al. 2025 (SEELE), arXiv:2509.06923, eq. 10, 12 and 13, sec. 4.2 (4 rounds of 8,
    target 1/2). Deviates: the curve's start and bounds (k up to 50, fig. 3) are ours; rates are rounded.
    Edge: rows without demonstration get no hints; given tokens are on top of `max_tokens`.

    Attributes:
        delimiter: End of a part; where it is empty or the demonstration has none, parts are single tokens.
    """

    state_class = StepCounts
    rounds: int = 4
    target: float = 0.5
    delimiter: str = "\n\n"
    provides = (GIVEN_TOKENS, HINT_RATE)

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.target < 1:
            raise ValueError(f"rounds={self.rounds} must be at least 1 and target={self.target} in (0, 1)")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        check_demonstrations(run, self.name)

    def parts(self, prompt: Prompt, run: StageContext) -> list[tuple[int, ...]]:
        """The demonstration's parts as token ids; the first i of them, joined, are tokens of the text up to
        there."""
        text = next(iter(demonstrations(prompt.row)), "").removeprefix(prompt.prefix)
        encode = run.policy.encode_text
        if not self.delimiter or self.delimiter not in text:
            return [(token,) for token in encode(text)]
        pieces = text.split(self.delimiter)
        texts = (
            [piece + self.delimiter * (i < len(pieces) - 1) for i, piece in enumerate(pieces)] if text else []
        )
        return [tuple(encode(piece)) for piece in texts]

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = [Group(prompt, []) for prompt in prompts]
        parts = [self.parts(prompt, run) for prompt in prompts]
        rates = [self.first_rate(prompt, len(y)) for prompt, y in zip(prompts, parts)]
        pairs: list[list[tuple[float, float]]] = [[] for _ in prompts]
        for index in range(self.rounds):
            sizes = [n // self.rounds + (index < n % self.rounds) for n in counts]
            given_parts = [round(p * len(y)) for p, y in zip(rates, parts)]
            given = [tuple(token for part in y[:m] for token in part) for y, m in zip(parts, given_parts)]
            drawn = self.draw([(prompt, n, ids) for prompt, n, ids in zip(prompts, sizes, given)], run)
            for rollouts, ids in zip(drawn, given):
                for rollout in rollouts:
                    GIVEN_TOKENS.set(rollout, len(ids))
            for i, new in enumerate(score_into_groups(groups, drawn, run)):
                if new and parts[i]:
                    pairs[i].append((given_parts[i] / len(parts[i]), success_rate(new)))
                    rates[i] = clamped(rate_for(self.target, *fit(pairs[i])), len(parts[i]))
                    self.state.add(rates=pairs[i][-1][0] * len(new))
                self.state.add(correct=success_rate(new) * len(new), rollouts=len(new))
        for group, rate, y in zip(groups, rates, parts):
            if y:
                HINT_RATE.set(group, rate)
        return groups

    def first_rate(self, prompt: Prompt, parts: int) -> float:
        """The hint rate of a row's first round."""
        return clamped(self.run.history.get(prompt.row.id, {}).get(KEY, 1.0), parts) if parts else 0.0

    def end_step(self, run: StepContext) -> None:
        for group in run.sampled_groups:
            if HINT_RATE.on(group):
                run.history.setdefault(group.row.id, {})[KEY] = HINT_RATE[group]
        super().end_step(run)

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The mean share of the solution that the step's rollouts were given, and the share of correct
        rollouts."""
        share = self.state.share
        return {"hint/rate": share("rates", "rollouts"), "hint/correct": share("correct", "rollouts")}


def clamped(rate: float, parts: int) -> float:
    """The rate in [0, (|y| - 1) / |y|]: at least one part is left to write."""
    return min(max(rate, 0.0), (parts - 1) / parts)
