"""CodeV-R1's adaptive DAPO: dynamic sampling that draws as many prompts as the share of useful ones asks for.

    codev_r1               prompt sampler: more rows than groups are missing, by the share of groups kept
    codev_r1.full_batch    group filter: dynamic sampling that keeps no group beyond a full batch

Paper: Zhu et al. 2025 (CodeV-R1), arXiv:2505.24183, sec. 3.3. Read in IPRC-DIP/CodeV-R1 @ 277ac46e:
verl/verl/trainer/ppo/ray_trainer.py:507-508, 923-931, 1049-1094. Its reward is `verilog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from vlrl.methods.core.group_filter import DynamicSampling
from vlrl.methods.core.prompt_sampler import Shuffle, ShuffleState
from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.types import FilterDecision, Group, Row


@dataclass
class CodevR1State(ShuffleState):
    """The position in the data and `share`: the smallest share of a step's groups that was kept.

    Of the current step: `drawn` rows, `draws`, the `last` draw's size and what was `missing` before it, and
    `part`, the smallest share that a draw kept.
    """

    share: float = 1.0
    drawn: int = transient(0)
    draws: int = transient(0)
    logged: int = transient(0)  # draws of the step before
    last: int = transient(0)
    missing: int = transient(0)
    part: float = transient(1.0)


@register("codev_r1")
@dataclass(frozen=True)
class CodevR1(Shuffle):
    """Adaptive DAPO's draws: ceil(n / min(share, part)) rows for n missing groups, so that one round of
    generation fills the batch.

        part  <- min(part, kept / drawn) after each draw of a step; 1 when the step ends
        share <- min(share, kept / drawn) over the whole step

    kept: groups whose outcomes differ. Paper: CodeV-R1, arXiv:2505.24183, sec. 3.3; the release's rule
    (ray_trainer.py:927, 1067-1071), there in whole batches of the loader. Edge: a draw of which nothing was
    kept counts one group, and no draw has more than `most` n rows (ours: the release divides by 0). State:
    the position and `share`. Reads all ranks' groups; metrics: draws and `share`.
    """

    state_class = CodevR1State
    most: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1:
            raise ConfigError(
                f"prompt_sampler.most: {self.most} is below 1; give the most rows per missing group"
            )

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if phase.settings.loop != "synchronous":
            raise ConfigError(
                f"prompt_sampler: 'codev_r1' counts the draws of one step, and loop {phase.settings.loop!r} "
                "draws for several at once; use synchronous"
            )

    def __call__(self, n: int) -> list[Row]:
        state: CodevR1State = self.state
        if state.draws:
            state.part = min(state.part, max(state.missing - n, 1) / state.last)
        size = min(ceil(n / min(state.share, state.part) - 1e-9), self.most * n)
        state.missing, state.last = n, size
        state.drawn, state.draws = state.drawn + size, state.draws + 1
        return super().__call__(size)

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        state: CodevR1State = self.state
        kept = sum(differs(group) for group in run.sampled_groups)
        if state.drawn:
            state.share = min(state.share, max(kept, 1) / state.drawn)
        state.logged, state.drawn, state.draws, state.part = state.draws, 0, 0, 1.0

    def metrics(self) -> dict[str, float]:
        state: CodevR1State = self.state
        return {**super().metrics(), "data/draws": float(state.logged), "data/kept_share": state.share}


def differs(group: Group) -> bool:
    """Whether a group's outcomes (0 where there is none) differ: the release's std > 0."""
    outcomes = [rollout.outcome or 0.0 for rollout in group]
    return bool(outcomes) and max(outcomes) > min(outcomes)


@dataclass
class FullBatchState(State):
    """The groups kept in this step, on this rank."""

    kept: int = transient(0)


@register("codev_r1.full_batch")
@dataclass(frozen=True)
class CodevR1FullBatch(DynamicSampling):
    """Dynamic sampling that ends with a full batch: keeps groups whose outcomes differ, of those the first
    `prompts_per_step` of a step.

    Paper: CodeV-R1, arXiv:2505.24183, sec. 3.3; DAPO, arXiv:2503.14476, eq. 11; the release cuts the batch at
    ray_trainer.py:1092-1094 @ 277ac46e. Edge: each rank keeps its share of `prompts_per_step`. State: none
    beyond the step.
    """

    state_class = FullBatchState

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.kept = 0

    def __call__(self, group: Group) -> FilterDecision:
        found = super().__call__(group)
        groups, ranks = self.run.settings.prompts_per_step, self.run.ranks
        share = groups // ranks + (self.run.rank < groups % ranks)
        if found.keep and self.state.kept >= share:
            return FilterDecision(False, "the batch is full")
        self.state.kept += found.keep
        return found

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        self.state.kept = 0
