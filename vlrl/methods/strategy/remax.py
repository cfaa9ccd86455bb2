"""Independent samples and the greedy completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.run import Run


@register("remax")
@dataclass(frozen=True)
class WithGreedy(Independent):
    """y_1 .. y_n ~ pi(. | x), and y_0 = the greedy completion: scored as a baseline (source "greedy"), not trained on.

    Paper: Li et al. 2023 (ReMax), arXiv:2310.10505, algorithm 1.  Edge: a prompt with count 0 gets no greedy completion either.
    """

    def check(self, run: Run) -> None:
        if run.advantage.name != "remax" and not any(getattr(gate, "reads_greedy", False) for gate in run.gate.values()):
            raise ConfigError(
                f"strategy remax samples a greedy baseline that advantage {run.advantage.name!r} does not read; use advantage: {{name: remax}}, "
                "a gate that reads it (greedy_wrong), or strategy independent"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        live = [group for group in groups if len(group)]
        requests = []
        for place, group in enumerate(live):
            greedy = replace(run.decode(group.prompt, 0), temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
            requests.append(Request(prompt=group.prompt, sampling=greedy, n=1, seed=self.seeds(run, group.prompt), tag=place))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "greedy", False
            live[completion.request.tag].rollouts.append(rollout)
        return groups
