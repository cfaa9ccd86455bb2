"""RISE: the policy is trained to verify its own solutions while it is trained to solve; a verifier's score is
the gold answer of the verdict.

`rise` is a rollout strategy.

Paper: Liu et al. 2025 (RISE), arXiv:2505.13445, sec. 4.1, algorithm 1 (128 pairs for 1024 problems: share
1/8; as many answers to each).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.prompts import check_task, derived_row, neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import register
from vlrl.types import Group, Prompt


@register("rise")
@dataclass(frozen=True)
class Rise(Independent):
    """RISE's rollouts: n solutions of every prompt, and n verdicts on each of `share` times as many
    (question, solution) pairs, drawn from all.

    A pair is asked by `ask`, which contains {question} and {solution}, as a row of the task `task`; its gold
    answer is the raw score of the solution's outcome reward, so that the reward for that task compares the
    policy's score with it. Verdicts are groups of their own, trained on in the same step. Paper: Liu et al.
    2025 (RISE), arXiv:2505.13445, sec. 4.1, algorithm 1. Deviates: the words of `ask` are ours. Each rank
    draws from its own solutions. Edge: a pair too long is left out; a fractional number is rounded at random.
    """

    share: float = 0.125
    ask: str = (
        "Question: {question}\nSolution: {solution}\nWhat score does the solution deserve: 1 if its final "
        "answer is right, 0 if it is not? "
        "Examine it, then give the score as your answer."
    )
    task: str = "verification"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]: pairs to verify per prompt")
        if "{question}" not in self.ask or "{solution}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must contain {{question}} and {{solution}}")

    def check(self, phase: PhaseContext) -> None:
        check_task(phase, self.name, self.task)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        pairs = [(group, place) for group in groups for place in range(len(group))]
        draw = random.Random(f"{run.seed}/rise/{run.step}/{run.rank}")
        chosen = draw.sample(pairs, min(len(pairs), int(self.share * len(prompts) + draw.random())))
        rows = []
        for group, place in chosen:
            rollout = group.rollouts[place]
            question = self.ask.replace("{solution}", neutralised(rollout.text)).replace(
                "{question}", group.row.question
            )
            rows.append(
                derived_row(group.row, f"verify-{place}", question, f"{rollout.outcome or 0.0:g}", self.task)
            )
        verifications = prompts_within_limit(run, rows)
        return groups + super().__call__(verifications, [run.group_size] * len(verifications), run)
