"""The three-parameter logistic curve of item response theory: accuracy by the share of a solution that is given.

Rounds of attempts, each with as much of the solution given as makes about half of them right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares

from vlrl.methods.common.sampling_rounds import accuracy, score_rounds
from vlrl.methods.core.rollout import Independent
from vlrl.methods.papers.ghpo import check_demonstrations
from vlrl.methods.papers.luffy import demonstrations
from vlrl.registry import register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext

START = (10.0, -0.5, 0.0)
BOUNDS = ((1e-3, -2.0, 0.0), (50.0, 1.0, 0.99))


def curve(p: Any, k: float, mu: float, b: float) -> Any:
    """f(p) = b + (1 - b) / (1 + e^(-k (p + mu)))."""
    return b + (1 - b) / (1 + np.exp(-k * (np.asarray(p) + mu)))


def fit(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(k, mu, b) of the curve nearest, in squares, to the (rate, accuracy) pairs; those of one rate are averaged first."""
    rates = sorted({p for p, _ in pairs})
    seen = np.array([np.mean([a for p, a in pairs if p == rate]) for rate in rates])
    found = least_squares(lambda phi: curve(np.array(rates), *phi) - seen, START, bounds=BOUNDS, method="trf")
    k, mu, b = found.x.tolist()
    return k, mu, b


def rate_for(target: float, k: float, mu: float, b: float) -> float:
    """f^-1(target); minus infinity where guessing alone reaches it."""
    return -mu - math.log((1 - b) / (target - b) - 1) / k if b < target else -math.inf


KEY = "seele"


@register("seele")
@dataclass(frozen=True)
class Seele(Independent):
    """A prompt's n rollouts come in `rounds`. Those of a round go on from the first round(p |y|) parts of the row's demonstration y.

    p is where the curve f(p) = b + (1 - b) / (1 + e^(-k (p + mu))), fitted to this prompt's rounds so far by least squares, is `target`, at most
    (|y| - 1) / |y|: that is also the first p of a row; afterwards the last one fitted. Parts end at `delimiter`, or are tokens where it is empty.
    Given tokens are in the rollout, `info["given"]` many, for weight `own_tokens` (no policy gradient on them) and term nll with given: true.
    Paper: Li et al. 2025 (SEELE), arXiv:2509.06923, eq. 10, 12 and 13, sec. 4.2 (4 rounds of 8, target 1/2). Deviates: the curve's start and bounds
    (k up to 50, as in fig. 3) are ours; pairs hold the rate that was given, after rounding. The last p is in the run's history, from all ranks.
    Right means a reward above `threshold` (of `slot`, or the total). Edge: a row without demonstration is sampled in rounds without hints; given
    tokens come on top of `max_tokens`.
    """

    rounds: int = 4
    target: float = 0.5
    delimiter: str = "\n\n"
    slot: str = ""
    threshold: float = 0.5
    run: Any = field(init=False, default=None, repr=False, compare=False)
    counted: dict[str, float] = field(init=False, default_factory=lambda: {"rate": 0.0, "right": 0.0, "n": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.target < 1:
            raise ValueError(f"rounds={self.rounds} must be at least 1 and target={self.target} in (0, 1)")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)
        check_demonstrations(run, self.name)

    def parts(self, prompt: Prompt, run: RunContext) -> list[tuple[int, ...]]:
        """The demonstration's parts as token ids; the first i of them, joined, are tokens of the text up to there."""
        text = next(iter(demonstrations(prompt.row)), "").removeprefix(prompt.prefix)
        encode = run.policy.tokenizer.encode
        if not self.delimiter:
            return [(token,) for token in encode(text, add_special_tokens=False)]
        pieces = text.split(self.delimiter)
        texts = [piece + self.delimiter * (i < len(pieces) - 1) for i, piece in enumerate(pieces)] if text else []
        return [tuple(encode(piece, add_special_tokens=False)) for piece in texts]

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = [Group(prompt, []) for prompt in prompts]
        parts = [self.parts(prompt, run) for prompt in prompts]
        rates = [self.first(prompt, len(y)) for prompt, y in zip(prompts, parts)]
        pairs: list[list[tuple[float, float]]] = [[] for _ in prompts]
        for turn in range(self.rounds):
            sizes = [n // self.rounds + (turn < n % self.rounds) for n in counts]
            shown = [round(p * len(y)) for p, y in zip(rates, parts)]
            given = [tuple(token for part in y[:m] for token in part) for y, m in zip(parts, shown)]
            drawn = self.draw([(prompt, n, ids) for prompt, n, ids in zip(prompts, sizes, given)], run)
            for rollouts, ids in zip(drawn, given):
                for rollout in rollouts:
                    rollout.info["given"] = len(ids)
            for i, new in enumerate(score_rounds(groups, drawn, run)):
                if new and parts[i]:
                    pairs[i].append((shown[i] / len(parts[i]), accuracy(new, self.threshold, self.slot)))
                    rates[i] = self.bounded(rate_for(self.target, *fit(pairs[i])), len(parts[i]))
                    self.counted["rate"] += pairs[i][-1][0] * len(new)
                self.counted["right"] += accuracy(new, self.threshold, self.slot) * len(new)
                self.counted["n"] += len(new)
        for group, rate, y in zip(groups, rates, parts):
            if y:
                group.info["hint_rate"] = rate
        return groups

    def bounded(self, rate: float, parts: int) -> float:
        """Into [0, (|y| - 1) / |y|]: something is always left to do."""
        return min(max(rate, 0.0), (parts - 1) / parts)

    def first(self, prompt: Prompt, parts: int) -> float:
        """Where the rounds of a row begin."""
        return self.bounded(self.run.history.get(prompt.row.id, {}).get(KEY, 1.0), parts) if parts else 0.0

    def end_step(self, run: RunContext) -> None:
        groups = run.sampled_groups
        for group in groups:
            if "hint_rate" in group.info:
                self.run.history.setdefault(group.row.id, {})[KEY] = group.info["hint_rate"]

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The mean share of the solution that this step's rollouts were given, and the share that was right."""
        out = {f"hint/{name}": (self.counted[name], self.counted["n"]) for name in ("rate", "right")}
        self.counted.update(rate=0.0, right=0.0, n=0.0)
        return out
