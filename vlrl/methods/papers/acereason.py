"""AceReason-Nemotron: completion limits that grow in stages, one domain at a time, hard prompts at the end.

    acereason           sampling policy: the completion limit of each stage
    acereason.domains   prompt sampler: the domain of each stage, without the prompts that the policy mostly
    solves in late stages

Paper: Chen et al. 2025 (AceReason-Nemotron), arXiv:2505.16400, sec. 3.2 to 3.4: mathematics at 8K, 16K and
24K tokens, code at 24K and 32K, mathematics at 32K. Deviates: the paper trains each stage until it stops to
gain; here stages are equally long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.row_order import Mixture
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import PromptSampler, State, transient
from vlrl.types import Prompt, Row, Sampling


def stage_of(run: StageContext, stages: int) -> int:
    """The number of the current one of so many equally long stages of the phase."""
    return min(stages * run.phase_step // run.settings.steps, stages - 1)


@register("acereason")
@dataclass(frozen=True)
class Acereason(Plain):
    """AceReason's length extension: `plain` sampling with a completion limit per stage.

        limit = ceil(shares[i] * max_tokens),  i = floor(k * step / steps) for the phase's k = len(shares)
        equal stages

    `shares` are in (0, 1], one per stage. Edge: without a run (before `setup`) the limit is `max_tokens`.
    Units: tokens.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"shares={self.shares} must be numbers in (0, 1], one per stage")

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        return replace(super().__call__(prompt, attempt), max_tokens=self.limit())

    def limit(self) -> int:
        """The longest completion of the current stage, in tokens."""
        if not self.is_set_up:
            return self.max_tokens
        share = self.shares[stage_of(self.run, len(self.shares))]
        return max(math.ceil(share * self.max_tokens - 1e-9), self.min_tokens, 1)

    def metrics(self) -> dict[str, float]:
        return {"acereason/max_tokens": float(self.limit())}


@dataclass
class AcereasonDomainsState(State):
    """Rows drawn of each source, and the last pass rate of each row that was answered. `mixtures` are the
    sources' row orders."""

    positions: list[int] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    mixtures: list[Any] = transient(factory=list)


@register("acereason.domains")
@dataclass(frozen=True)
class AcereasonDomains(PromptSampler):
    """AceReason's curriculum over domains: stage i of k = len(order) equally long ones draws from source
    order[i] of `data.train`, counted from 0.

    In the stages `hard`, rows with a pass rate above `highest` are passed over: the share of correct rollouts
    when the row was last answered, else `row.meta["pass_rate"]`. Rows without a rate are taken.
    Paper: arXiv:2505.16400, sec. 3.2.2 (prompts with a pass rate above 6/16 are filtered out at 24K and 32K),
    sec. 3.4 (the order). Deviates: the paper measures pass rates between stages. Edge: where all rows of a
    source are too easy, they are taken as they come. Raises ConfigError for a source that is not there. Reads
    `run.rows`. State: positions and pass rates.
    """

    state_class = AcereasonDomainsState
    order: tuple[int, ...] = (0, 0, 0, 1, 1, 0)
    hard: tuple[int, ...] = (2, 5)
    highest: float = 0.375

    def __post_init__(self) -> None:
        if not self.order or min(self.order) < 0 or not set(self.hard) <= set(range(len(self.order))):
            raise ConfigError(
                f"prompt_sampler: order={list(self.order)} must number sources, and hard={list(self.hard)} "
                "its stages, from 0"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if max(self.order) >= len(run.rows):
            raise ConfigError(
                f"prompt_sampler: order={list(self.order)} names source {max(self.order)}; data.train has "
                f"{len(run.rows)}, from 0"
            )
        self.state.mixtures = [Mixture({name: rows}, {}, run.seed) for name, rows in run.rows.items()]
        self.state.positions = self.state.positions or [0] * len(self.state.mixtures)

    def __call__(self, n: int) -> list[Row]:
        stage = stage_of(self.run, len(self.order))
        return [self._next(self.order[stage], stage in self.hard) for _ in range(n)]

    def _next(self, source: int, hard: bool) -> Row:
        state, mixture = self.state, self.state.mixtures[source]
        for _ in range(len(mixture)):
            row: Row = mixture.row(state.positions[source])
            state.positions[source] += 1
            if not hard or state.rates.get(row.id, row.meta.get("pass_rate", 0.0)) <= self.highest:
                break
        return row

    def end_step(self, run: StepContext) -> None:
        for group in run.answered_groups:
            if len(group):
                self.state.rates[group.row.id] = sum(bool(rollout.correct) for rollout in group) / len(group)

    def metrics(self) -> dict[str, float]:
        return (
            {"data/level": float(self.order[stage_of(self.run, len(self.order))])} if self.is_set_up else {}
        )
