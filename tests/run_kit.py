"""A small object with the attributes of a plug-in's context (`vlrl/plugins/contexts.py`), for tests of
plug-ins
without a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vlrl.trainer.session import Session
from vlrl.trainer.step.episodes import StepEpisodes
from vlrl.trainer.step.observer import RunObserver
from vlrl.trainer.step.scoring import score
from vlrl.trainer.step.step import ScoreCounts, Step
from vlrl.trainer.views import StepView

DEFAULTS: dict[str, Any] = {
    **{"seed": 0, "step": 1, "phase_step": 0, "phase": "rl", "rank": 0, "ranks": 1, "output": None},
    **{"policy": None, "environment": None, "params_sharded": False, "state_sharded": False},
}


class Steps(RunObserver):
    """Keeps the steps of a session."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def ended(self, step: Step) -> None:
        self.steps.append(step)


def last_step(session: Session) -> Step:
    """The last step of a session that is observed by `Steps`."""
    return next(one for one in session.observers.members if isinstance(one, Steps)).steps[-1]


class View(SimpleNamespace):
    """A context on one process: what is given, and what every context has. `warnings` are those that were
    given;
    `record` is the step, `score_counts` what was scored."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**{**DEFAULTS, **parts})
        vars(self).setdefault("history", {})
        vars(self).setdefault("rewards", {})
        vars(self).setdefault("settings", SimpleNamespace(error_limit=1.0))
        self.warnings: list[str] = []
        self.record = Step(self.step, self.phase_step)
        self.score_counts = ScoreCounts()
        self._shared: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        return self.policy is not None

    @property
    def counts(self) -> dict[str, float]:
        """The step's counters."""
        return self.record.counts

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def count(self, values: dict[str, float]) -> None:
        self.record.count(values)

    def episodes(self, counted: bool = True) -> StepEpisodes:
        return StepEpisodes(self, self.record, self.score_counts, self.warn, counted)

    def score(self, groups: Any) -> None:
        score(groups, self, self.score_counts, self.warn, f"step {self.step}")

    def gather(self, values: Any) -> list[Any]:
        return list(values)

    def sum_tensor(self, tensor: Any) -> Any:
        return tensor

    row_copy = StepView.row_copy
    make_rollout = Session.make_rollout
    gather_and_clear = StepView.gather_and_clear
    mean = StepView.mean
    shared = Session.shared
