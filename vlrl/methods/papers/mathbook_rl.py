"""MathBook-RL (We-Math 2.0): batches of variants of one knowledge principle, rewards averaged by rank over
them, and a schedule of difficulty.

    mathbook_rl                  advantage: rewards averaged by rank over the variants of a principle
    (pre-aligned RL) mathbook_rl.by_principle     prompt sampler: all variants of a principle together
    mathbook_rl.schedule         prompt sampler: each problem's next harder variant once it is solved, an
    easier one once it is not

Paper: We-Math 2.0 (MathBook-RL), arXiv:2508.10433, with released code (We-Math/We-Math2.0, commit 29eb79b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.methods.common.row_order import permute
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AdvantageEstimator, PromptSampler, State, transient
from vlrl.types import Group, Row

TOGETHER = Capability(
    "mathbook_rl.together",
    hint="prompt_sampler: {name: mathbook_rl.by_principle}",
)


@register("mathbook_rl")
@dataclass(frozen=True)
class MathbookRl(AdvantageEstimator):
    """MathBook-RL's advantage: A_i = (mean over variants of the reward at i's rank - mean) / (std + eps),
    mean and std over the principle's rollouts.

    Groups whose rows have the same `row.meta[key]` are variants of one principle. The rewards of each variant
    are averaged rank by rank, best first. Paper: arXiv:2508.10433. Released code: We-Math/We-Math2.0,
    pre_align/verl/trainer/ray_trainer.py, commit 29eb79b (population std, eps 1e-6). Needs variants in the
    same batch (`mathbook_rl.by_principle`). Deviates: rewards are those of the principle's own rollouts;
    there the batch is sorted (:637-640) and `scores` is not, so that means and std are of other places
    (:643-697). Edge: one variant is GRPO with the population std; equal rewards give zeros, and keep their
    order.
    """

    key: str = "principle"
    eps: float = 1e-6
    requires = (TOGETHER,)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        principles: dict[object, list[int]] = {}
        for index, group in enumerate(groups):
            principles.setdefault(group.row.meta.get(self.key, ("alone", index)), []).append(index)
        advantages: list[list[float]] = [[] for _ in groups]
        for variants in principles.values():
            by_rank = [sorted(groups[i].rewards, reverse=True) for i in variants]
            ranks = [
                [rewards[k] for rewards in by_rank if k < len(rewards)] for k in range(max(map(len, by_rank)))
            ]
            averages = [sum(rewards) / len(rewards) for rewards in ranks]
            pooled = [reward for rewards in by_rank for reward in rewards]
            mean = sum(pooled) / len(pooled)
            std = (sum((reward - mean) ** 2 for reward in pooled) / len(pooled)) ** 0.5
            for i in variants:
                rewards = groups[i].rewards
                order = sorted(range(len(rewards)), key=rewards.__getitem__, reverse=True)
                rank = {k: place for place, k in enumerate(order)}
                advantages[i] = [(averages[rank[k]] - mean) / (std + self.eps) for k in range(len(rewards))]
        return advantages


def principles_of(rows: Sequence[Row], key: str) -> dict[str, list[int]]:
    """principle -> the indices of its rows, in the order of `meta.level` where rows have one. Raises
    ConfigError where a row has no principle."""
    found: dict[str, list[int]] = {}
    for index in range(len(rows)):
        row = rows[index]
        if key not in row.meta:
            raise ConfigError(
                f"prompt_sampler: row {row.id!r} has no meta.{key}, the name of its knowledge principle; "
                "tasks/gen_geometry has it"
            )
        found.setdefault(str(row.meta[key]), []).append(index)
    return {
        name: sorted(indices, key=lambda i: (rows[i].meta.get("level", 0), i))
        for name, indices in found.items()
    }


def all_rows(run: StageContext) -> list[Row]:
    """The rows of all sources of the phase, in order."""
    return [row for rows in run.rows.values() for row in rows]


@dataclass
class ByPrincipleState(State):
    """`position`: principles that were given so far; `offset`: rows given of the present one. The rest is
    made by `setup`."""

    position: int = 0
    offset: int = 0
    rows: list[Row] = transient(list)
    sets: list[list[int]] = transient(list)


@register("mathbook_rl.by_principle")
@dataclass(frozen=True)
class MathbookRlByPrinciple(PromptSampler):
    """MathBook-RL's batches: the variants of one principle after those of another, principles in a new random
    order each epoch.

    A batch of n rows holds whole principles where their sizes divide n; a principle that does not fit goes on
    in the next batch. Paper: We-Math 2.0 (MathBook-RL), arXiv:2508.10433. Released code: We-Math/We-Math2.0,
    pre_align/verl/utils/dataset.py:337-390, commit 29eb79b. Deviates: there the rest of a principle that does
    not fit is left out of the epoch. Needs `row.meta[key]`; raises ConfigError without it. State: the
    position.
    """

    state_class = ByPrincipleState
    key: str = "principle"
    provides = (TOGETHER,)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        state: ByPrincipleState = self.state
        state.rows = all_rows(run)
        state.sets = list(principles_of(state.rows, self.key).values())

    def __call__(self, n: int) -> list[Row]:
        state: ByPrincipleState = self.state
        out: list[Row] = []
        while len(out) < n:
            epoch, place = divmod(state.position, len(state.sets))
            variants = state.sets[permute(place, len(state.sets), f"{self.run.seed}|mathbook|{epoch}")]
            out.append(state.rows[variants[state.offset]])
            state.offset += 1
            if state.offset == len(variants):
                state.position, state.offset = state.position + 1, 0
        return out

    def metrics(self) -> dict[str, float]:
        return {"data/epoch": self.state.position / max(1, len(self.state.sets))}


@dataclass
class ScheduleState(State):
    """`levels`: the present level of each principle that was visited; `position`: principles given so far.
    The rest is made by `setup`."""

    levels: dict[str, int] = field(default_factory=dict)
    position: int = 0
    rows: list[Row] = transient(list)
    sets: dict[str, list[int]] = transient(dict)


@register("mathbook_rl.schedule")
@dataclass(frozen=True)
class MathbookRlSchedule(PromptSampler):
    """MathBook-RL's dynamic scheduling: a principle's next level once its problem is solved, the level below
    once it is not.

        level <- level + 1 if any rollout is correct, else level - 1, within the principle's levels

    Paper: We-Math 2.0 (MathBook-RL), arXiv:2508.10433. Released code: We-Math/We-Math2.0 29eb79b,
    dynamic_scheduling/verl/utils/dataset.py:299-430. Deviates: there levels are a graph of increments (base,
    x, y, xy, ...), what failed comes again until it is solved, or, at the first level, no more, and results
    are read after rollouts were reordered (ray_trainer.py:531,562), so that problems share them; the
    auxiliary problem here is the level below, since generated rows isolate one factor (the size of the
    numbers). Needs `row.meta[key]` and `row.meta["level"]`. State: the level of each visited principle. Edge:
    the hardest level stays.
    """

    state_class = ScheduleState
    key: str = "principle"

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        state: ScheduleState = self.state
        state.rows = all_rows(run)
        state.sets = principles_of(state.rows, self.key)

    def __call__(self, n: int) -> list[Row]:
        state: ScheduleState = self.state
        names, out = list(state.sets), []
        for _ in range(n):
            epoch, place = divmod(state.position, len(names))
            name = names[permute(place, len(names), f"{self.run.seed}|schedule|{epoch}")]
            out.append(state.rows[state.sets[name][state.levels.get(name, 0)]])
            state.position += 1
        return out

    def end_step(self, run: StepContext) -> None:
        state: ScheduleState = self.state
        for group in run.answered_groups:
            name = str(group.row.meta.get(self.key, ""))
            if name in state.sets and len(group):
                step = 1 if any(rollout.correct for rollout in group) else -1
                state.levels[name] = min(max(state.levels.get(name, 0) + step, 0), len(state.sets[name]) - 1)

    def metrics(self) -> dict[str, float]:
        levels = list(self.state.levels.values())
        return {"data/level": sum(levels) / len(levels)} if levels else {}
