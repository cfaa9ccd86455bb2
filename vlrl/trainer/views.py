"""What the parts of a step are given, and plug-ins with narrower types (`vlrl/plugins/contexts.py`): the
slots
of the phase, the session, and the step's own. Plain delegation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from vlrl.plugins import stages as S
from vlrl.trainer.heldout import evaluate_run
from vlrl.trainer.phase import PhaseAttributes, PhasePlan
from vlrl.trainer.ranks.collectives import gather_in_turn, moment_of
from vlrl.trainer.step.episodes import StepEpisodes
from vlrl.trainer.step.scoring import score
from vlrl.trainer.step.step import ScoreCounts, Step
from vlrl.types import Completion, Group, Rollout, Row, TokenBatch

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor

    from vlrl.policy.policy import Policy
    from vlrl.trainer.session import Session
    from vlrl.trainer.step.observer import Observers

T = TypeVar("T")


class StepView(PhaseAttributes):
    """One step of a session: what rollout strategies, `end_step` and callbacks are given.

    A loop that collects ahead makes a view with an accelerator, a source of rows and score counts of its own,
    so that collecting and training do not touch each other. See `SamplingContext`, `StepContext` and
    `CallbackContext`.

    Args:
        session: The session.
        record: The step's value.
        accelerator: Its `gather` is used while collecting; None: the session's.
        draw_rows: Draws the rows; None: the phase's prompt sampler.
        score_counts: What the error limit is measured against; None: the session's own.
    """

    def __init__(
        self,
        session: Session,
        record: Step,
        accelerator: Accelerator | None = None,
        draw_rows: Callable[[int], Sequence[Row]] | None = None,
        score_counts: ScoreCounts | None = None,
    ) -> None:
        self.session, self.record, self._current = session, record, session.current
        self.accelerator = accelerator or session.accelerator
        self.draw_rows = draw_rows or session.current.prompt_sampler
        self.score_counts = score_counts or session.score_counts

    @classmethod
    def between_steps(cls, session: Session) -> StepView:
        """A view without a step of its own, to evaluate with."""
        return cls(session, Step(session.step, session.phase_step))

    @property
    def current(self) -> PhasePlan:
        return self._current

    # --- the session ----------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.record.number

    @property
    def phase_step(self) -> int:
        return self.record.phase_step

    @property
    def policy(self) -> Policy:
        return self.session.policy

    @property
    def engine(self) -> S.Engine:
        return self.session.engine

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.session.optimizer

    @property
    def learning_rate(self) -> float:
        return self.session.learning_rate

    @property
    def rows(self) -> Mapping[str, Sequence[Row]]:
        return self.session.rows

    @property
    def history(self) -> dict[str, dict]:
        return self.session.history

    @property
    def observers(self) -> Observers:
        return self.session.observers

    @property
    def rank(self) -> int:
        return self.session.rank

    @property
    def ranks(self) -> int:
        return self.session.ranks

    @property
    def state_sharded(self) -> bool:
        return self.session.state_sharded

    @property
    def params_sharded(self) -> bool:
        return self.session.params_sharded

    def shared(self, name: str, make: Callable[[], T]) -> T:
        return self.session.shared(name, make)

    def warn(self, message: str) -> None:
        self.session.warn(message)

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        return self.session.batch(groups)

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        return self.session.micro_batches(groups)

    def make_rollout(self, completion: Completion) -> Rollout:
        return self.session.make_rollout(completion)

    def gather(self, values: Sequence[T]) -> list[T]:
        return gather_in_turn(self.accelerator, values)

    def gather_and_clear(self, values: list[T]) -> list[T]:
        recorded = values[:]
        del values[: len(recorded)]
        return self.gather(recorded)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        return self.session.sum_tensor(tensor)

    def mean(self, total: float, count: float) -> float:
        parts = self.gather([(total, count)])
        return sum(total for total, _ in parts) / max(sum(count for _, count in parts), 1.0)

    # --- the step -------------------------------------------------------------------------------------------

    @property
    def groups(self) -> Sequence[Group]:
        return self.record.groups

    @property
    def sampled_groups(self) -> Sequence[Group]:
        return self.record.sampled_groups

    @property
    def answered_groups(self) -> Sequence[Group]:
        return self.record.answered_groups

    @property
    def trained_groups(self) -> Sequence[Group]:
        return self.record.trained_groups

    def count(self, values: Mapping[str, float]) -> None:
        self.record.count(values)

    def row_copy(self, row: Row) -> tuple[int, ...]:
        return self.record.row_copy(row)

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the rollout strategy is done: fills `rewards`, `reward`, `outcome` and `correct`;
        drops
        rollouts on which a reward raised.

        A reward that scores rollouts one by one is not called again for a rollout that has its score; a
        rollout
        that changes afterwards must lose its `rewards`. Rewards that compare siblings score the finished
        group
        anew.
        """
        score(groups, self.current, self.score_counts, self.warn, moment_of(self))

    def episodes(self, counted: bool = True) -> StepEpisodes:
        """A pool of episodes of the environment. Leaving it closes them all. Without `counted` the step's
        counters are left alone."""
        return StepEpisodes(self.current, self.record, self.score_counts, self.warn, counted)

    def event(self, kind: str, values: Mapping[str, object]) -> None:
        self.observers.event_happened(kind, values)

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""
        return dict(evaluate_run(self).accuracy)
