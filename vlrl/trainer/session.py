"""A session: a plan whose model is loaded. It holds what lasts from step to step: policy, engine, optimizer,
the phase in use, counters, and the memory of the rows."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vlrl.policy.sequence_group import SequenceGroup, joint
from vlrl.services.lazy import Tensor, torch
from vlrl.trainer.data.bad_rows import BadRows
from vlrl.trainer.phase import PhaseAttributes, PhasePlan
from vlrl.trainer.plan import Plan
from vlrl.trainer.ranks.collectives import gather_in_turn, params_sharded, state_sharded
from vlrl.trainer.ranks.sequence import check_ranks, joint_groups
from vlrl.trainer.step.loss_inputs import cost, make_batch, split_micro_batches
from vlrl.trainer.step.observer import Observers
from vlrl.trainer.step.optim import make_accelerator, make_optimizer
from vlrl.trainer.step.step import ScoreCounts, Step
from vlrl.types import Completion, Group, Rollout, Row, TokenBatch

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vlrl.policy.policy import Policy


log = logging.getLogger("vlrl")
T = TypeVar("T")


class Session(PhaseAttributes):
    """A run in progress, opened from its plan; one per process. `open` loads the model, `enter` begins a
    phase.

    `step` counts steps over all phases, `phase_step` those of the current one. `history` is a memory per row
    id that checkpoints keep; its values are plain (JSON). `sequence`: the ranks that train on the same rows,
    if this one does not train alone. See `StageContext` for what plug-ins see of it.
    """

    accelerator: Accelerator
    policy: Policy
    optimizer: torch.optim.Optimizer

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.config, self.engine, self.phases = plan.config, plan.engine, plan.phases
        self.is_connected = self.is_open = False
        self.phase_index = 0
        self.step = 0
        self.phase_step = 0
        self.learning_rate = 0.0  # of the last optimizer step
        self.history: dict[str, dict] = {}
        self.score_counts = ScoreCounts()
        self.bad_rows = BadRows()
        self.observers = Observers()
        self.sequence: SequenceGroup | None = None
        self._shared: dict[str, Any] = {}

    @property
    def current(self) -> PhasePlan:
        return self.phases[self.phase_index]

    # --- opening --------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Join the other processes of the run, if there are any. `open` does it too."""
        if not self.is_connected:
            self.accelerator = make_accelerator([phase.settings.optimizer for phase in self.phases])
            self.is_connected = True
            check_ranks(self.phases, self.ranks)

    def open(self, weights: str | Path | None = None) -> None:
        """Load the policy (from `weights` where given) and start the engine."""
        from vlrl.policy.policy import Policy  # imports torch

        self.connect()
        seed_everything(self.seed)
        if self.plan.threads:
            torch.set_num_threads(self.plan.threads)
        family = replace(self.family, model=str(weights)) if weights else self.family
        self.policy = Policy(family, device=self.accelerator.device, seed=self.seed)
        self.is_open = True
        self.engine.setup(self)

    def use(self, index: int) -> None:
        """Make a phase the current one, without setting its plug-ins up."""
        self.phase_index = index

    def enter(self, index: int) -> None:
        """Begin a phase: its rows, its optimizer, its plug-ins (set up)."""
        self.use(index)
        self.current.rows("train")
        self.phase_step = 0
        self._share_rows(self.settings.sequence_parallel)
        self.optimizer = make_optimizer(self.policy, self.accelerator, self.current, self.warn)
        for _, plugin in self.current.plugins():
            plugin.setup(self)

    def _share_rows(self, size: int) -> None:
        """Let `size` consecutive ranks train on the same rows. A collective where the number is new."""
        if size == 1 or self.sequence is None or self.sequence.size != size:
            self.sequence = SequenceGroup.of(size, self.rank, self.ranks) if size > 1 else None
        if self.sequence is not None:
            self.policy.allow_slices(size)

    def restore(self, step: int, phase_step: int, history: Mapping[str, dict]) -> None:
        """Go on where a checkpoint was written."""
        self.step, self.phase_step, self.history = step, phase_step, dict(history)

    def close(self) -> None:
        """Free the resources of the engine and of environments."""
        self.engine.close()
        for phase in self.phases:
            if phase.environment is not None:
                phase.environment.close()

    # --- steps ----------------------------------------------------------------------------------------------

    def begin_step(self) -> Step:
        """The next step."""
        self.step += 1
        return Step(self.step, self.phase_step)

    def finish_step(self) -> None:
        """Count the step as done."""
        self.phase_step += 1

    def set_learning_rate(self, rate: float) -> None:
        """Note the rate of the optimizer step that follows."""
        self.learning_rate = rate

    def sync(self, step: Step) -> None:
        """Count an update, and hand the new weights to the engine."""
        self.policy.advance()
        with step.timed("sync"):
            self.engine.sync(self.policy)
            self.observers.synced()

    # --- what plug-ins ask for ------------------------------------------------------------------------------

    @property
    def rows(self) -> dict[str, Sequence[Row]]:
        """The phase's training rows by source."""
        return self.current.rows("train")

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """What several plug-ins of the run use under a name (a critic): made at the first call."""
        if name not in self._shared:
            self._shared[name] = make()
        made: T = self._shared[name]
        return made

    def warn(self, message: str) -> None:
        """Write a warning to the console and to events.jsonl."""
        log.warning(message)
        self.observers.warned(message)

    def make_rollout(self, completion: Completion) -> Rollout:
        """A finished completion as a rollout of its prompt."""
        prompt = completion.request.prompt
        sampling = completion.request.sampling
        temperature: Any = sampling.temperature
        if not isinstance(temperature, (int, float)):
            temperature = [sampling.temperature_at(t) or 1.0 for t in range(len(completion.ids))]
        return Rollout(
            prompt=prompt,
            ids=list(completion.ids),
            text=prompt.prefix + completion.text,
            logp=list(completion.logp),
            finish=completion.finish,
            version=completion.version,
            spaces=tuple(self.policy.spaces(prompt)) if self.is_open else (),
            temperature=temperature or 1.0,
            top_logprobs=completion.top_logprobs,
            routing=completion.routing,
        )

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        """The groups as the input of `policy.forward`. Raises ValueError for an empty completion."""
        return make_batch(groups, self.policy.pad_id, self.policy.device, self.settings.logp_temperature)

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The groups in pieces of `micro_batch_tokens`, one `batch` each. Ranks may have different
        numbers."""
        return split_micro_batches(groups, self.settings.micro_batch_tokens, partial(cost, self.policy))

    # --- ranks ----------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process, of `ranks`."""
        return self.accelerator.process_index if self.is_connected else 0

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return self.accelerator.num_processes if self.is_connected else 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes for all."""
        return self.rank == 0

    @property
    def state_sharded(self) -> bool:
        """Whether weights or optimizer states are spread over ranks: none has a whole copy of both."""
        return self.is_connected and state_sharded(self.accelerator)

    @property
    def params_sharded(self) -> bool:
        """Whether the weights themselves are (FSDP, ZeRO-3)."""
        return self.is_connected and params_sharded(self.accelerator)

    @property
    def leads(self) -> bool:
        """Whether this rank counts for those that train on the same rows, where ranks are added up."""
        return self.sequence is None or self.sequence.leads

    def joint(self) -> AbstractContextManager[None]:
        """Inside, forwards are joint ones of the ranks that train on the same rows (`joint_groups`)."""
        return joint(self.sequence)

    def joint_groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups of the ranks that train on the same rows. A collective of theirs."""
        return joint_groups(self.sequence, groups)

    def gather(self, values: Sequence[T]) -> list[T]:
        return gather_in_turn(self.accelerator, values) if self.is_connected else list(values)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return self.accelerator.reduce(tensor, "sum") if self.ranks > 1 else tensor


def seed_everything(seed: int) -> None:
    """Seed the global generators. They initialise tiny models; the training loop does not draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
