"""What each chunk of a searched solution is worth, less what the search's solutions are worth on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods._tokens import check_credit
from vlrl.methods.advantage.grpo import mean
from vlrl.registry import ConfigError, register
from vlrl.stages import Advantage
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("deepsearch")
@dataclass(frozen=True)
class ChunkValues(Advantage):
    """A_t = q(s_t) - mu: the value of the chunk that token t is in (strategy `deepsearch`), mu the mean of the tree's ends (+1 right, -1 not).

    Paper: Wu et al. 2025 (DeepSearch), arXiv:2509.25454, eq. 13-15 (no division by the standard deviation); q_max 1, temperature 1. For credit
    `per_token`. Edge: a wrong path's chunks that were never backed up have q 0, so that they gain where most ends are wrong;
    rollouts of no tree have their reward for a value.
    """

    writes_tokens = True

    def check(self, run: Run) -> None:
        if run.strategy.name != "deepsearch":
            raise ConfigError(
                f"advantage deepsearch reads values that strategy {run.strategy.name!r} does not leave; use strategy: {{name: deepsearch}}"
            )
        check_credit(run, "deepsearch")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            values = [rollout.info.get("q", [rollout.reward] * len(rollout)) for rollout in group]
            usual = mean([row[-1] for row in values])
            for rollout, row in zip(group, values, strict=True):
                rollout.info["token_advantages"] = [q - usual for q in row]
            out.append([mean(rollout.info["token_advantages"]) for rollout in group])
        return out
