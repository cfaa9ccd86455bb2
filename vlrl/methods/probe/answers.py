"""How many different answers a group gives, and what a vote among them is worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.types import Group

from ._judged import Judged, answer_of, mean


@register("answers")
@dataclass(frozen=True, kw_only=True)
class Answers(Judged):
    """Different answers per group, the entropy of their distribution H = -sum_a p_a ln p_a, the majority's share, and how often the vote is right.

    An answer is the last match of `pattern`, else the last line. "vote" is maj@n (self-consistency): the most frequent answer, ties by first come,
    is right if the first rollout that gives it is.
    Paper: answer-level entropy: arXiv:2507.14843 (beside token-level entropy it shows when only the wording varies); vote:
    Wang et al. 2022, arXiv:2203.11171. Edge: empty answers count as one answer. Units: nats, shares.
    """

    pattern: str = r"<answer>(.*?)</answer>"

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        unique, entropy, majority, vote = [], [], [], []
        for members in self.judged(groups):
            answers = [answer_of(rollout.text, self.pattern) for rollout, _ in members]
            counts = Counter(answers)
            shares = [count / len(answers) for count in counts.values()]
            winner = max(counts, key=lambda answer: counts[answer])
            unique.append(float(len(counts)))
            entropy.append(-sum(share * math.log(share) for share in shares))
            majority.append(max(shares))
            vote.append(float(members[answers.index(winner)][1]))
        if not unique:
            return {}
        return {"unique": mean(unique), "entropy": mean(entropy) + 0.0, "majority": mean(majority), "vote": mean(vote)}
