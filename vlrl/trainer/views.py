"""What the parts of a step are given, and plug-ins with narrower types (`vlrl/plugins/contexts.py`): the
slots of the phase, the session, and the step's own. Plain delegation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from vlrl.plugins import stages as S
from vlrl.services.delegation import Of
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

    step: Of[int] = Of("record", "number")
    phase_step: Of[int] = Of("record")
    policy: Of[Policy] = Of("session")
    engine: Of[S.Engine] = Of("session")
    optimizer: Of[torch.optim.Optimizer] = Of("session")
    learning_rate: Of[float] = Of("session")
    rows: Of[Mapping[str, Sequence[Row]]] = Of("session")
    history: Of[dict[str, dict]] = Of("session")
    observers: Of[Observers] = Of("session")
    event: Of[Callable[[str, Mapping[str, object]], None]] = Of("observers", "event_happened")
    rank: Of[int] = Of("session")
    ranks: Of[int] = Of("session")
    state_sharded: Of[bool] = Of("session")
    params_sharded: Of[bool] = Of("session")
    warn: Of[Callable[[str], None]] = Of("session")
    batch: Of[Callable[[Sequence[Group]], TokenBatch]] = Of("session")
    micro_batches: Of[Callable[[Sequence[Group]], list[list[Group]]]] = Of("session")
    make_rollout: Of[Callable[[Completion], Rollout]] = Of("session")
    sum_tensor: Of[Callable[[Tensor], Tensor]] = Of("session")

    def shared(self, name: str, make: Callable[[], T]) -> T:
        return self.session.shared(name, make)

    def gather(self, values: Sequence[T]) -> list[T]:
        return gather_in_turn(self.accelerator, values)

    # --- the step -------------------------------------------------------------------------------------------

    groups: Of[Sequence[Group]] = Of("record")
    sampled_groups: Of[Sequence[Group]] = Of("record")
    answered_groups: Of[Sequence[Group]] = Of("record")
    trained_groups: Of[Sequence[Group]] = Of("record")
    count: Of[Callable[[Mapping[str, float]], None]] = Of("record")
    row_copy: Of[Callable[[Row], tuple[int, ...]]] = Of("record")

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the rollout strategy is done: fills `rewards`, `reward`, `outcome` and `correct`;
        drops rollouts on which a reward raised.

        A reward that scores rollouts one by one is not called again for a rollout that has its score; a
        rollout that changes afterwards must lose its `rewards`. Rewards that compare siblings score the
        finished group anew.
        """
        score(groups, self.current, self.score_counts, self.warn, moment_of(self))

    def episodes(self, counted: bool = True) -> StepEpisodes:
        """A pool of episodes of the environment. Leaving it closes them all. Without `counted` the step's
        counters are left alone."""
        return StepEpisodes(self.current, self.record, self.score_counts, self.warn, counted)

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""
        return dict(evaluate_run(self).accuracy)
