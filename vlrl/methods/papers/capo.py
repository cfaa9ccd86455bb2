"""CAPO: credit assignment with a generative process reward model; tokens of steps that the judge finds wrong
get a lower reward.

    capo               advantage estimator per token, for `token_credit: {name: per_token}`; reads the
    annotations CRITIQUES and STEP_ENDS capo.rule_critic   reward shaping that writes them: a critic by rule,
    for rows with gold steps, in place of the paper's language model

Paper: Xie et al. 2025 (CAPO), arXiv:2508.02298: token rewards, outcome 2 and process 1, votes.
Deviates: that the normalisation is over the tokens of the group is vlrl's reading (no code was released).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.methods.core.advantage import GroupRelative, set_token_advantages, whiten_rows
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, RewardShaping
from vlrl.types import Group, Rollout

HINT = "reward_shaping: {critic: {name: capo.rule_critic}}, or a judge of yours"
CRITIQUES: Annotation[list[list[int]]] = Annotation(
    "capo.critiques", list, hint=HINT, doc="one list of wrong step numbers (0-based) per sample of the judge"
)
STEP_ENDS: Annotation[list[int]] = Annotation(
    "capo.step_ends", list, hint=HINT, doc="where each step of the rollout ends, in tokens"
)


@register("capo")
@dataclass(frozen=True)
class CAPO(GroupRelative):
    """CAPO: outcome reward minus a process penalty on the tokens of wrong steps, normalised over the group's
    tokens.

        A_{i,t} = whiten over all tokens of the group of  R_{i,t} = outcome r_i - process 1[t is in a step
        judged wrong]

    `vote`: "majority" takes the steps that at least half of the judge's samples name, "union" any,
    "intersection" all. Edge: without critiques rewards differ between rollouts only.
    """

    outcome: float = 2.0
    process: float = 1.0
    vote: Literal["majority", "union", "intersection"] = "majority"
    provides = (TOKEN_ADVANTAGES,)
    requires = (CRITIQUES, STEP_ENDS)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows: list[list[float]] = []
        for group in groups:
            own = [self.token_rewards(rollout) for rollout in group]
            whiten_rows(own, group.rollouts)
            rows += own
        return set_token_advantages(groups, rows)

    def wrong_steps(self, rollout: Rollout) -> set[int]:
        """Numbers of the steps that the vote finds wrong."""
        samples = [set(sample) for sample in CRITIQUES.get(rollout, [])]
        needed = {"majority": math.ceil(len(samples) / 2), "union": 1, "intersection": len(samples)}[
            self.vote
        ]
        votes = Counter(step for sample in samples for step in sample)
        return {step for step, count in votes.items() if count >= needed}

    def token_rewards(self, rollout: Rollout) -> list[float]:
        """R_{i,t}, one reward per token."""
        rewards, start, wrong = [self.outcome * rollout.reward] * len(rollout), 0, self.wrong_steps(rollout)
        for step, end in enumerate(STEP_ENDS.get(rollout, [])):
            if step in wrong:
                rewards[start:end] = [self.outcome * rollout.reward - self.process] * (
                    min(end, len(rollout)) - start
                )
            start = end
        return rewards


@register("capo.rule_critic")
@dataclass(frozen=True)
class CapoRuleCritic(RewardShaping):
    """CAPO's critique by rule: a step is wrong if the row's gold steps do not have it; writes CRITIQUES and
    STEP_ENDS.

    A step is a match of `pattern` in the text, such as "a27+5=32"; it ends with the token in which the match
    ends, and begins where the step before it ended. Gold: `row.meta[steps]`. Rewards are unchanged. Paper:
    arXiv:2508.02298 lets a language model name the wrong steps, several times; one sample of a rule is vlrl's
    stand-in for tasks whose steps can be checked. Edge: a row without gold steps raises ValueError; a rollout
    without a step has none.
    """

    pattern: str = r"[A-Za-z]\d+(?:[-+*/]\d+)+=-?\d+"
    steps: str = "steps"
    provides = (CRITIQUES, STEP_ENDS)

    def __call__(self, group: Group) -> list[float]:
        gold = group.row.meta.get(self.steps)
        if not gold:
            raise ValueError(
                f"row {group.row.id!r}: 'capo.rule_critic' needs meta[{self.steps!r}], the gold steps; use "
                "a judge for rows without them"
            )
        right = {str(step) for step in gold}
        for rollout in group:
            pieces = [self.run.policy.tokenizer.decode([token]) for token in rollout.ids]
            found = list(re.finditer(self.pattern, "".join(pieces)[:100_000]))
            CRITIQUES.set(rollout, [[number for number, match in enumerate(found) if match[0] not in right]])
            STEP_ENDS.set(rollout, [token_end(pieces, match.end()) for match in found])
        return group.rewards


def token_end(pieces: Sequence[str], at: int) -> int:
    """How many tokens the first `at` characters take; a token that reaches beyond them counts."""
    length = 0
    for number, piece in enumerate(pieces, 1):
        length += len(piece)
        if length >= at:
            return number
    return len(pieces)
