"""A run: all plug-ins that a config names, built and checked before the first model is loaded."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl.activity.observer import Activity
from vlrl.config import Config
from vlrl.config.settings import Settings
from vlrl.plugins import stages as S
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.registry import ConfigError, build, load_plugin_file
from vlrl.trainer.data.bad_rows import BadRows
from vlrl.trainer.data.rows import read_rows
from vlrl.trainer.phase import Phase, build_phase, check_requirements, provided
from vlrl.trainer.services import RunServices
from vlrl.trainer.slot_references import check_slot_references
from vlrl.trainer.step.loss import Objective
from vlrl.trainer.step.stats import StepStats
from vlrl.types import Completion, Group, Rollout, Row

log = logging.getLogger("vlrl")


class Run(RunServices):
    """State and plug-ins of a training run. `open` loads the model; `enter` makes one phase's plug-ins the
    current ones.

    `step` counts steps over all phases, `phase_step` those of the current one. `history` is a memory per row
    id that is kept in checkpoints; its values must be plain (JSON). What a run does for plug-ins is in
    `RunServices`.
    """

    # the current phase's plug-ins, by slot
    settings: Settings
    prompt_sampler: S.PromptSampler
    prompt_template: S.PromptTemplate
    sampling: S.SamplingPolicy
    rollout_budget: S.RolloutBudget
    rollout: S.RolloutStrategy
    environment: S.Environment | None
    rewards: dict[str, S.Reward]
    reward_shaping: dict[str, S.RewardShaping]
    group_filters: dict[str, S.GroupFilter]
    replay: S.ReplayBuffer | None
    advantage: S.AdvantageEstimator
    token_credit: S.TokenCredit
    trainable: S.Trainable
    callbacks: dict[str, S.Callback]
    metrics: dict[str, S.Metric]
    aux_tensors: dict[str, S.AuxTensor]
    objective: Objective
    rows: dict[str, Sequence[Row]]  # training rows by source
    source_weights: dict[str, float]

    def __init__(self, config: Config) -> None:
        from vlrl.policy import Family

        self.config = config
        tree = config.tree
        for file in tree.get("plugins") or []:
            load_plugin_file(file)
        self.seed = _integer(tree, "seed", 0)
        self.threads = _integer(tree, "threads", 0)  # of torch on the CPU; 0 leaves its default
        self.output = Path(str(tree.get("output") or "runs/unnamed"))
        if "policy" not in tree:
            raise ConfigError(
                "policy: not set; add a model, for instance `extends: [models/tiny_qwen2_5_vl]`"
            )
        self.family: Family = build(Family, tree["policy"], "policy")
        self.engine: S.Engine = build(S.Engine, tree.get("engine") or {"name": ""}, "engine")
        self.phases: list[Phase] = [build_phase(config, name) for name in config.phases]
        self.phase_index = 0
        self.phase_step = 0
        self.step = 0
        self.history: dict[str, dict[str, Any]] = {}
        self.collected_ahead: dict[str, Any] | None = None  # batches for later steps, as plain values
        self.extras: dict[str, Any] = {}  # auxiliary trainable modules and services, by name
        self.policy: Any = None
        self.accelerator: Any = None
        self.optimizer: Any = None
        self.learning_rate = 0.0  # of the current optimizer step
        self.recorder: Any = None
        self.stats = StepStats()
        self.bad_rows = BadRows()
        self.activity: Activity | None = None  # watches the first steps of a phase
        self.groups: list[Group] = []  # this rank's, of the step just taken
        self.sampled_groups: Sequence[Group] = ()  # all ranks'
        self.answered_groups: Sequence[Group] = ()  # the same with the policy's own rollouts alone
        self.trained_groups: Sequence[Group] = ()  # all ranks'
        self.cached_rows: dict[str, dict[str, Sequence[Row]]] = {}
        for index in range(len(self.phases)):
            self.use(index)
            check_requirements(self.current)
            check_slot_references(self.current)
            for _, plugin in self.current.plugins():
                plugin.check(self)
        self.engine.check(self)
        self.use(0)

    def has(self, capability: Capability) -> bool:
        """Whether a plug-in of the current phase provides a capability."""
        return capability in provided(self.current)

    def outcome_slot(self, row: Row) -> str:
        """The reward slot that decides whether an answer to `row` is correct. Raises ConfigError where no
        reward scores the row."""
        return self.current.outcome_slot(row)

    # --- phases ---------------------------------------------------------------------------------------------

    @property
    def current(self) -> Phase:
        return self.phases[self.phase_index]

    @property
    def phase(self) -> str:
        """Name of the current phase."""
        return self.current.name

    @property
    def group_size(self) -> int:
        return self.settings.group_size

    def use(self, index: int) -> None:
        """Make a phase's plug-ins the attributes of the run, without setting them up."""
        self.phase_index = index
        phase = self.current
        self.settings = phase.settings
        self.objective = phase.objective
        self.aux_tensors = phase.aux_tensors
        vars(self).update(phase.slots)
        vars(self).update(phase.maps)
        self.source_weights = {slot: source.weight for slot, source in phase.train.items()}

    def enter(self, index: int) -> None:
        """Make a phase the current one: its rows, its plug-ins (set up), its optimizer."""
        from vlrl.trainer.step.optim import make_optimizer

        self.use(index)
        self.rows = read_rows(self, "train")
        make_optimizer(self)
        for _, plugin in self.current.plugins():
            plugin.setup(self)

    # --- opening --------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Join the other processes of the run, if there are any. `open` does it too."""
        from vlrl.trainer.step.optim import make_accelerator

        self.accelerator = self.accelerator or make_accelerator(self)

    def open(self, weights: str | Path | None = None) -> None:
        """Load the policy (from `weights` where given) and start the engine."""
        from vlrl.policy import Policy

        self.connect()
        seed_everything(self.seed)
        if self.threads:
            torch.set_num_threads(self.threads)
        family = replace(self.family, model=str(weights)) if weights else self.family
        self.policy = Policy(family, device=self.accelerator.device, seed=self.seed)
        self.engine.setup(self)

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
            spaces=tuple(self.policy.spaces(prompt)) if self.policy is not None else (),
            temperature=temperature or 1.0,
            top_logprobs=completion.top_logprobs,
        )

    def warn(self, message: str) -> None:
        """Write a warning to the console and to events.jsonl."""
        log.warning(message)
        if self.recorder is not None:
            self.recorder.event("warning", message=message)

    def close(self) -> None:
        """Free the resources of the engine and of environments."""
        self.engine.close()
        for phase in self.phases:
            if phase.slots.get("environment") is not None:
                phase.slots["environment"].close()


def seed_everything(seed: int) -> None:
    """Seed the global generators. They initialise tiny models; the training loop does not draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _integer(tree: Mapping[str, Any], key: str, default: int) -> int:
    value = tree.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{key}: expected a whole number, got {value!r}")
    return value
