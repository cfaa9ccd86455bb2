"""Tokens that tell right from wrong rollouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.registry import register
from vlrl.stages import TokenCredit
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext

EPS = 1e-5


def fisher(a: int, b: int, c: int, d: int) -> float:
    """Two-sided p of Fisher's exact test of the table [[a, b], [c, d]]: all tables with these margins that are no likelier."""
    row, column, n = a + b, a + c, a + b + c + d
    observed = math.comb(column, a) * math.comb(n - column, row - a)
    counts = (math.comb(column, k) * math.comb(n - column, row - k) for k in range(max(0, row + column - n), min(row, column) + 1))
    return sum(count for count in counts if count <= observed) / math.comb(n, row)


def information_gain(a: int, b: int, c: int, d: int) -> float:
    """Bits about right or wrong that a token's presence gives."""

    def bits(x: int, y: int) -> float:
        return -sum(v / (x + y) * math.log2(v / (x + y)) for v in (x, y) if v)

    n = a + b + c + d
    return bits(a + c, b + d) - sum((x + y) / n * bits(x, y) for x, y in ((a, b), (c, d)) if x + y)


@register("ktae")
@dataclass(frozen=True)
class KTAE(TokenCredit):
    """A_{i,t} = A_i + key(token),  key = 2 sigmoid((F + IG) x / 2) - 1,  per group and token id.

    F = exp(-2 p) for Fisher's exact p of (present, absent) x (right, wrong), 0 if p = 1; IG the information gain in bits;
    x = asin sqrt(share of right with it) - asin sqrt(share of wrong) + tf_r / (tf_w + e) - tf_w / (tf_r + e), tf the BM25-saturated frequency (k1
    2, b 0.5).
    Paper: Sun et al. 2025, arXiv:2505.16826, eq. 4-9, as in the released code; the end-of-sequence token (there a fixed id) has key 0.
    Edge: a group that is all right or all wrong keeps its advantages. Right means a reward above `threshold`.
    """

    scale: float = 1.0
    threshold: float = 0.5
    silent: set[int] = field(init=False, default_factory=set, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.silent.update(i for i in (run.policy.tokenizer.eos_token_id, run.policy.tokenizer.pad_token_id) if i is not None)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        right = [rollout.ids for rollout in group if rollout.reward > self.threshold]
        wrong = [rollout.ids for rollout in group if rollout.reward <= self.threshold]
        keys = self.keys(right, wrong) if right and wrong else {}
        return [[a + keys.get(token, 0.0) for token in rollout.ids] for a, rollout in zip(advantages, group, strict=True)]

    def keys(self, right: Sequence[Sequence[int]], wrong: Sequence[Sequence[int]]) -> dict[int, float]:
        """The key value of every token id that occurs."""
        seen = [Counter(token for ids in side for token in set(ids)) for side in (right, wrong)]
        often = [Counter(token for ids in side for token in ids) for side in (right, wrong)]
        totals = [sum(counter.values()) for counter in often]
        saturation = [2.0 * (0.5 + 0.5 * total / (sum(totals) / 2)) for total in totals]
        result = {}
        for token in {*seen[0], *seen[1]} - self.silent:
            a, b = seen[0][token], seen[1][token]
            c, d = len(right) - a, len(wrong) - b
            p = fisher(a, b, c, d)
            strength = (math.exp(-2 * p) if p < 1 else 0.0) + information_gain(a, b, c, d)
            f = [counter[token] / total for counter, total in zip(often, totals)]
            tf = [3.0 * v / (v + k) for v, k in zip(f, saturation)]
            x = math.asin(math.sqrt(a / len(right))) - math.asin(math.sqrt(b / len(wrong)))
            x += tf[0] / (tf[1] + EPS) - tf[1] / (tf[0] + EPS)
            result[token] = self.scale * math.tanh(strength * x / 4)  # 2 sigmoid(z) - 1 = tanh(z / 2)
        return result
