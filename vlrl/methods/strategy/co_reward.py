"""Each question and its paraphrase, so that they can vote for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.run import Run


@register("co_reward")
@dataclass(frozen=True)
class Paraphrased(Independent):
    """G rollouts of every prompt, and G more of its paraphrase `row.meta[key]`, in the same group of 2 G; these carry `info["paraphrased"]`.

    Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410: two groups, as in the released code; advantage `co_reward` keeps them apart.
    Edge: a row without a paraphrase is asked twice as it is: its two halves vote for each other.
    """

    key: str = "paraphrase"

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group, count in zip(groups, counts, strict=True):
            if count:
                row = group.row
                prompt = run.scaffold(replace(row, id=f"{row.id}/paraphrased", question=str(row.meta.get(self.key, row.question))))
                requests.append(Request(prompt, run.decode(prompt, 0), count, self.seeds(run, prompt), tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.info["paraphrased"] = True
            completion.request.tag.rollouts.append(rollout)
        return groups
