"""What a plug-in sees at each moment, as narrow protocols. No torch is imported here.

    check(run: PhaseContext)             the plan of its phase: settings, family, the other slots
    setup(run: StageContext)             + the loaded policy, rows, memory, ranks; kept as `self.run`
    strategy(..., run: SamplingContext)  + engine, templates, scoring, episodes
    end_step(run: StepContext)           + the step's groups
    callback(run: CallbackContext)       all of these, the optimizer, batches, held-out accuracy

A phase of the plan (`vlrl/trainer/phase.py`), the session (`vlrl/trainer/session.py`) and the views of one
step (`vlrl/trainer/step/views.py`) implement them. What can be changed has a method; attributes are read.

`gather`, `gather_and_clear`, `sum_tensor`, `mean` and `accuracy` are collectives: every rank calls them, or
none does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from vlrl.plugins.capabilities import Capability
from vlrl.plugins.views import (
    AdvantageView,
    EngineView,
    EnvironmentView,
    FamilyView,
    ObjectiveView,
    PluginView,
    PolicyView,
    RewardView,
    SamplingView,
    SettingsView,
    ShapingView,
    StrategyView,
    TemplateView,
)
from vlrl.types import Completion, Group, Rollout, Row, TokenBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vlrl.plugins.episode_pool import EpisodePool

T = TypeVar("T")

# --- the moments --------------------------------------------------------------------------------------------


class PhaseContext(Protocol):
    """A phase of the plan, as `check` sees it. The attributes named like slots hold their plug-ins."""

    @property
    def seed(self) -> int: ...
    @property
    def output(self) -> Path:
        """The run's folder."""

    @property
    def phase(self) -> str:
        """The phase's name."""

    @property
    def settings(self) -> SettingsView: ...
    @property
    def group_size(self) -> int:
        """Rollouts per prompt."""

    @property
    def family(self) -> FamilyView: ...
    @property
    def has_heldout(self) -> bool:
        """Whether the phase has held-out rows."""

    @property
    def sampling(self) -> SamplingView: ...
    @property
    def prompt_template(self) -> TemplateView: ...
    @property
    def rollout(self) -> StrategyView: ...
    @property
    def prompt_sampler(self) -> Callable[[int], Sequence[Row]]: ...
    @property
    def environment(self) -> EnvironmentView | None: ...
    @property
    def rewards(self) -> Mapping[str, RewardView]: ...
    @property
    def reward_shaping(self) -> Mapping[str, ShapingView]: ...
    @property
    def advantage(self) -> AdvantageView: ...
    @property
    def token_credit(self) -> PluginView: ...
    @property
    def objective(self) -> ObjectiveView: ...
    @property
    def aux_tensors(self) -> Mapping[str, PluginView]:
        """The extra tensors that plug-ins need, by name."""

    @property
    def trainable(self) -> PluginView: ...

    def has(self, capability: Capability) -> bool:
        """Whether a plug-in of the phase provides a capability."""

    def is_provided_anywhere(self, capability: Capability) -> bool:
        """Whether a plug-in of any phase of the run provides it."""

    def outcome_slot(self, row: Row) -> str:
        """The reward slot that decides whether an answer to `row` is correct. Raises ConfigError where no
        reward can."""


class StageContext(PhaseContext, Protocol):
    """The session, as every plug-in has it after `setup` (`self.run`)."""

    @property
    def step(self) -> int:
        """The step in progress, counted over all phases."""

    @property
    def phase_step(self) -> int:
        """Steps of the phase that are done."""

    @property
    def policy(self) -> PolicyView: ...
    @property
    def engine(self) -> EngineView: ...
    @property
    def rows(self) -> Mapping[str, Sequence[Row]]:
        """Training rows by source."""

    @property
    def source_weights(self) -> Mapping[str, float]: ...
    @property
    def history(self) -> dict[str, dict]:
        """A memory per row id that survives restarts; its values are plain (JSON)."""

    @property
    def rank(self) -> int:
        """This process, of `ranks`."""

    @property
    def ranks(self) -> int: ...
    @property
    def state_sharded(self) -> bool:
        """Whether weights or optimizer states are sharded over ranks."""

    @property
    def params_sharded(self) -> bool:
        """Whether the weights themselves are (FSDP, ZeRO-3)."""

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """What several plug-ins of the run use under a name (a critic): made at the first call."""

    def warn(self, message: str) -> None:
        """Write a warning to the console and to events.jsonl."""

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        """The input of `policy.forward`. Raises ValueError for an empty completion."""

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The groups in pieces of `micro_batch_tokens`, one `batch` each."""

    def make_rollout(self, completion: Completion) -> Rollout:
        """A finished completion as a rollout of its prompt."""

    def gather(self, values: Sequence[T]) -> list[T]:
        """Plain values of all ranks: the first of each, then the second of each."""

    def gather_and_clear(self, values: list[T]) -> list[T]:
        """`gather` of a list that is emptied."""

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""

    def mean(self, total: float, count: float) -> float:
        """All ranks' totals over all ranks' counts; 0 where the count is 0."""


class SamplingContext(StageContext, Protocol):
    """The collection of one step, as a rollout strategy sees it."""

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the strategy is done: fills `rewards`, `reward` and `outcome`; drops rollouts on
        which a reward raised."""

    def episodes(self, counted: bool = True) -> EpisodePool:
        """A pool of episodes of the environment. Leaving it closes them all. Without `counted` the step's
        counters are left alone."""

    def count(self, values: Mapping[str, float]) -> None:
        """Add to the step's counters, which are summed over ranks for the log."""

    def row_copy(self, row: Row) -> tuple[int, ...]:
        """(rank,) where another rank drew the same row first in this step, else (): part of a random stream's
        address."""


class StepContext(StageContext, Protocol):
    """A step that has learned, as `end_step` sees it. Groups of other ranks come without media."""

    @property
    def groups(self) -> Sequence[Group]:
        """This rank's groups that were trained on."""

    @property
    def sampled_groups(self) -> Sequence[Group]:
        """All ranks' groups, before filters."""

    @property
    def answered_groups(self) -> Sequence[Group]:
        """The same with the policy's own rollouts alone."""

    @property
    def trained_groups(self) -> Sequence[Group]:
        """All ranks' groups that were trained on."""


class CallbackContext(SamplingContext, StepContext, Protocol):
    """A step that has learned, as a callback sees it."""

    @property
    def learning_rate(self) -> float:
        """Of the last optimizer step."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def event(self, kind: str, values: Mapping[str, object]) -> None:
        """Write a line of events.jsonl."""

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""
