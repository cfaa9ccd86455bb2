"""The episodes of one step: what happens in them is counted, and failed ones are dropped and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vlrl.plugins.episode_pool import EpisodeHandle, EpisodePool
from vlrl.plugins.episodes import ReplayDiverged
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.step.scoring import drop
from vlrl.trainer.step.step import ScoreCounts, Step


class StepEpisodes(EpisodePool):
    """The pool of a step: counts what happens, and drops and reports failed episodes. Without `counted`
    (held-out
    evaluation) the step's and the run's counts are left alone, and nothing is recorded."""

    def __init__(
        self,
        phase: PhasePlan,
        step: Step,
        scores: ScoreCounts,
        warn: Callable[[str], None],
        counted: bool = True,
    ) -> None:
        self.phase, self.record, self.scores, self.warn, self.counted = phase, step, scores, warn, counted
        environment = phase.environment
        recorded = counted and environment is not None and environment.record
        super().__init__(environment, phase.output if recorded else None, step.number)

    def count(self, values: Mapping[str, float]) -> None:
        """Add to the counters `environment/...` of the step."""
        if self.counted:
            self.record.count({f"environment/{name}": float(value) for name, value in values.items()})

    def collect(self, patience: float) -> list[EpisodeHandle]:
        """The episodes with a new observation. Failed ones are closed, counted and reported; their `error` is
        set."""
        found = super().collect(patience)
        self.fail([handle for handle in found if handle.error is not None])
        return found

    def fail(self, failed: Sequence[EpisodeHandle]) -> None:
        """Close and count failed episodes. Raises RewardError above `error_limit`."""
        for handle in failed:
            self.close(handle, "error")
            if isinstance(handle.error, ReplayDiverged):
                self.count({"replays_diverged": 1})
        if failed and self.counted:
            self.scores.add(scored=len(failed))
            first, environment = failed[0], self.environment
            assert first.error is not None and environment is not None
            what = f"environment {environment.name!r} raised on row {first.row.id!r}"
            pending = sum(handle.error is None for handle in self.handles)
            limit = self.phase.settings.error_limit
            drop(len(failed), what, first.error, self.scores, limit, self.warn, pending)

    def close(self, handle: EpisodeHandle, end: str = "") -> None:
        """Close an episode; with its `end` it is counted."""
        if end and not handle.closed and self.environment is not None:
            own = handle.trajectory.steps[handle.given :]
            self.count(
                {
                    "episodes": 1,
                    f"end/{end}": 1,
                    "turns": len(own),
                    "tool_calls": sum(answer.calls for _, answer in own),
                    "invalid_actions": sum(answer.invalid for _, answer in own),
                    "calls": handle.steps,
                }
            )
            if self.counted:
                self.record.add_seconds("environment", handle.seconds)
        super().close(handle, end)
