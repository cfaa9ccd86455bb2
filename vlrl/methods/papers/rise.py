"""Solutions, and verdicts of the policy on some of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.common.derived_prompts import accuracy, check_task, derived, fitting, harmless
from vlrl.methods.core.rollout import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("rise")
@dataclass(frozen=True)
class Rise(Independent):
    """n solutions of every prompt, and for `share` as many (question, solution) pairs, drawn among all, n verdicts whose gold answer is the score.

    A pair is asked by `ask`, which holds {question} and {solution}, as a row of the task `task`; its gold answer is the raw score that the solution
    got in `slot` (empty: the first with a weight), so that the reward for that task compares the score that the policy gives with it. Verdicts are
    groups of their own, learned from in the same step.
    Paper: Liu et al. 2025 (RISE), arXiv:2505.13445, sec. 4.1, algorithm 1 (128 pairs for 1024 problems: share 1/8; as many answers to each).
    Deviates: the words of `ask` are ours. With several ranks each draws among its own solutions. Edge: a pair that is too long for a prompt is left
    out; what `share` leaves as a fraction is drawn by chance.
    """

    share: float = 0.125
    ask: str = (
        "Question: {question}\nSolution: {solution}\nWhat score does the solution deserve: 1 if its final answer is right, 0 if it is not? "
        "Examine it, then give the score as your answer."
    )
    task: str = "verification"
    slot: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be in (0, 1]: pairs to verify per prompt")
        if "{question}" not in self.ask or "{solution}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must hold {{question}} and {{solution}}")

    def check(self, run: RunContext) -> None:
        check_task(run, "rise", self.task, self.slot)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        pairs = [(group, place) for group in groups for place in range(len(group))]
        draw = random.Random(f"{run.seed}/rise/{run.step}/{run.rank}")
        chosen = draw.sample(pairs, min(len(pairs), int(self.share * len(prompts) + draw.random())))
        rows = []
        for group, place in chosen:
            rollout = group.rollouts[place]
            words = self.ask.replace("{solution}", harmless(rollout.text)).replace("{question}", group.row.question)
            rows.append(derived(group.row, f"verify-{place}", words, f"{accuracy(run, rollout, self.slot):g}", self.task))
        asked = fitting(run, rows)
        return groups + super().__call__(asked, [run.group_size] * len(asked), run)
