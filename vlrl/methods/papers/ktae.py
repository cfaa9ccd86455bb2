"""KTAE: key-token advantage estimation. Statistical tests find the tokens that separate correct from wrong
rollouts of a prompt.

Paper: Sun et al. 2025 (KTAE), arXiv:2505.16826, with released code.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenCredit
from vlrl.types import Group

EPS = 1e-5


@register("ktae")
@dataclass(frozen=True)
class KTAE(TokenCredit):
    """KTAE's token-level advantage: A_{i,t} = A_i + scale * key(token),  key = 2 sigmoid((F + IG) x / 2) - 1,
    per group and token id.

        F = exp(-2 p), Fisher's exact p of the table (present, absent) x (correct, wrong); 0 for a token that
            every rollout has
        IG: the information gain in bits
        x = asin sqrt(share of correct rollouts with it) - asin sqrt(share of wrong ones)
            + tf_c / (tf_w + e) - tf_w / (tf_c + e)

    tf is the BM25-saturated frequency of the token on its side (k1 2, b 0.5), e = 1e-5. Paper: Sun et al.
    2025 (KTAE), arXiv:2505.16826, eq. 4-9, as in the released code, whose test p != 1 finds such tokens alone
    (other p of 1 are sums of float32 there); end-of-sequence and padding tokens (there a fixed id) have key
    0. Edge: a group that is all correct or all wrong keeps its advantages.
    """

    scale: float = 1.0

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        correct = [rollout.ids for rollout in group if rollout.correct]
        wrong = [rollout.ids for rollout in group if not rollout.correct]
        keys = self.keys(correct, wrong) if correct and wrong else {}
        return [
            [a + keys.get(token, 0.0) for token in rollout.ids]
            for a, rollout in zip(advantages, group, strict=True)
        ]

    def keys(self, correct: Sequence[Sequence[int]], wrong: Sequence[Sequence[int]]) -> dict[int, float]:
        """scale * key of every token id that occurs. Arguments: the token ids of the correct and of the wrong
        rollouts."""
        presence = [Counter(token for ids in side for token in set(ids)) for side in (correct, wrong)]
        counts = [Counter(token for ids in side for token in ids) for side in (correct, wrong)]
        totals = [sum(counter.values()) for counter in counts]
        saturation = [2.0 * (0.5 + 0.5 * total / (sum(totals) / 2)) for total in totals]
        result = {}
        for token in {*presence[0], *presence[1]} - self.special_ids():
            a, b = presence[0][token], presence[1][token]
            c, d = len(correct) - a, len(wrong) - b
            p = fisher(a, b, c, d)
            strength = (math.exp(-2 * p) if c or d else 0.0) + information_gain(a, b, c, d)
            frequency = [counter[token] / total for counter, total in zip(counts, totals)]
            tf = [3.0 * v / (v + k) for v, k in zip(frequency, saturation)]
            x = math.asin(math.sqrt(a / len(correct))) - math.asin(math.sqrt(b / len(wrong)))
            x += tf[0] / (tf[1] + EPS) - tf[1] / (tf[0] + EPS)
            result[token] = self.scale * math.tanh(strength * x / 4)  # 2 sigmoid(z) - 1 = tanh(z / 2)
        return result

    def special_ids(self) -> set[int]:
        """Ids of the end-of-sequence and padding tokens, which have key 0; empty before the plug-in is set
        up."""
        tokenizer = self.run.policy.tokenizer if self.is_set_up else None
        return (
            {i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None}
            if tokenizer is not None
            else set()
        )


def fisher(a: int, b: int, c: int, d: int) -> float:
    """Two-sided p of Fisher's exact test of the table [[a, b], [c, d]]: the probability of all tables with
    these margins that are no likelier."""
    row, column, n = a + b, a + c, a + b + c + d
    observed = math.comb(column, a) * math.comb(n - column, row - a)
    counts = (
        math.comb(column, k) * math.comb(n - column, row - k)
        for k in range(max(0, row + column - n), min(row, column) + 1)
    )
    return sum(count for count in counts if count <= observed) / math.comb(n, row)


def information_gain(a: int, b: int, c: int, d: int) -> float:
    """Information gain in bits about correct or wrong from a token's presence, for the table [[a, b], [c,
    d]]."""

    def bits(x: int, y: int) -> float:
        return -sum(v / (x + y) * math.log2(v / (x + y)) for v in (x, y) if v)

    n = a + b + c + d
    return bits(a + c, b + d) - sum((x + y) / n * bits(x, y) for x, y in ((a, b), (c, d)) if x + y)
