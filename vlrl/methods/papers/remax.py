"""Independent samples and the greedy completion.

The greedy answer as baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("remax.greedy_baseline")
@dataclass(frozen=True)
class RemaxGreedyBaseline(Independent):
    """y_1 .. y_n ~ pi(. | x), and y_0 = the greedy completion: scored as a baseline (source "greedy"), not trained on.

    Paper: Li et al. 2023 (ReMax), arXiv:2310.10505, algorithm 1.  Edge: a prompt with count 0 gets no greedy completion either.
    """

    def check(self, run: RunContext) -> None:
        if run.advantage.name != "remax" and not any(getattr(gate, "reads_greedy", False) for gate in run.group_filters.values()):
            raise ConfigError(
                f"strategy remax samples a greedy baseline that advantage {run.advantage.name!r} does not read; use advantage: {{name: remax}}, "
                "a gate that reads it (greedy_wrong), or strategy independent"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        live = [group for group in groups if len(group)]
        requests = []
        for place, group in enumerate(live):
            greedy = replace(run.sampling(group.prompt, 0), temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
            requests.append(Request(prompt=group.prompt, sampling=greedy, n=1, seed=self.seeds(run, group.prompt), tag=place))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "greedy", False
            live[completion.request.tag].rollouts.append(rollout)
        return groups


@register("remax")
@dataclass(frozen=True)
class ReMax(AdvantageEstimator):
    """A_i = r_i - r(greedy completion of the same prompt).

    The greedy rollout is made by strategy `remax`, scored like the others, and not trained on.
    Paper: Li et al. 2023, arXiv:2310.10505, eq. 5 and algorithm 1.  Raises ValueError for a group without a greedy rollout.
    """

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "remax.greedy_baseline":
            raise ConfigError(
                f"advantage remax needs the greedy rollout that strategy {run.rollout.name!r} does not make; use strategy: {{name: remax}}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            greedy = [rollout.reward for rollout in group.untrained if rollout.source == "greedy"]
            if not greedy:
                raise ValueError(f"row {group.row.id!r}: no greedy rollout in the group; use strategy: {{name: remax}}")
            result.append([r - greedy[0] for r in group.rewards])
        return result
