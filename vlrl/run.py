"""A run: everything that a config names, built and checked before the first model is loaded."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl import stages as S
from vlrl.config import Config
from vlrl.objective import Objective
from vlrl.phase import Phase, build_phase
from vlrl.registry import ConfigError, build, load_plugin_file
from vlrl.settings import Settings
from vlrl.types import Completion, Rollout, Row


class Run:
    """State and plug-ins of a training run. `open` loads the model; `enter` makes one phase's plug-ins the current ones.

    `step` counts steps over all phases, `phase_step` those of the current one. `history` is a memory per row id that outlives restarts; values must be
    plain (JSON).
    """

    # the current phase's plug-ins, by slot
    settings: Settings
    sampler: S.Sampler
    scaffold: S.Scaffold
    decode: S.Decode
    budget: S.Budget
    strategy: S.Strategy
    env: S.Env | None
    rewards: dict[str, S.Reward]
    shape: dict[str, S.Shape]
    gate: dict[str, S.Gate]
    replay: S.Replay | None
    advantage: S.Advantage
    credit: S.Credit
    callbacks: dict[str, S.Callback]
    probes: dict[str, S.Probe]
    fields: dict[str, S.Field]
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
        self.output = Path(str(tree.get("output") or "runs/unnamed"))
        if "policy" not in tree:
            raise ConfigError("policy: not set; add a model, for instance `extends: [models/tiny_qwen2_5_vl]`")
        self.family: Family = build(Family, tree["policy"], "policy")
        self.engine: S.Engine = build(S.Engine, tree.get("engine") or {"name": ""}, "engine")
        self.phases: list[Phase] = [build_phase(config, name) for name in config.phases]
        self.phase_index = 0
        self.phase_step = 0
        self.step = 0
        self.history: dict[str, dict[str, Any]] = {}
        self.extras: dict[str, Any] = {}  # auxiliary trainable modules and services, by name
        self.policy: Any = None
        self.accelerator: Any = None
        self.optimizer: Any = None
        self.scheduler: Any = None
        self._data: dict[str, Any] = {}
        for index in range(len(self.phases)):
            self._select(index)
            for _, plugin in self.current.plugins():
                plugin.check(self)
        self.engine.check(self)
        self._select(0)

    # --- phases -----------------------------------------------------------------------------------------------------------------------

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

    def _select(self, index: int) -> None:
        self.phase_index = index
        phase = self.current
        self.settings = phase.settings
        self.objective = phase.objective
        self.fields = phase.fields
        vars(self).update(phase.one)
        vars(self).update(phase.maps)
        self.source_weights = {slot: source.weight for slot, source in phase.train.items()}

    def enter(self, index: int) -> None:
        """Make a phase the current one: its rows, its plug-ins (set up), its optimizer."""
        from vlrl.optim import make_optimizer

        self._select(index)
        self.rows = self.read("train", self.current.train)
        make_optimizer(self)
        for _, plugin in self.current.plugins():
            plugin.setup(self)

    # --- data -------------------------------------------------------------------------------------------------------------------------

    def read(self, split: str, sources: Mapping[str, S.Source]) -> dict[str, Sequence[Row]]:
        """Rows of each source, after the phase's `select` chain for training data. Raises ConfigError for rows that cannot be used."""
        key = f"{self.phase_index}/{split}"
        if key not in self._data:
            out: dict[str, Sequence[Row]] = {}
            for slot, source in sources.items():
                rows: Any = source()
                rows = rows if isinstance(rows, Sequence) else list(rows)
                if split == "train":
                    for select in self.current.maps["select"].values():
                        rows = select(rows)
                if not len(rows):
                    raise ConfigError(f"data.{split}.{slot}: no rows")
                out[slot] = rows
            self._data[key] = out
        return self._data[key]

    def heldout_rows(self) -> dict[str, list[Row]]:
        """Held-out rows of the current phase, by task."""
        by_task: dict[str, list[Row]] = {}
        for rows in self.read("heldout", self.current.heldout).values():
            for row in rows:
                by_task.setdefault(row.task, []).append(row)
        return by_task

    def check_rows(self, limit: int = 2000) -> None:
        """Look at the first rows of every source of every phase: answers there, media there, scored by something. Raises ConfigError."""
        from vlrl.rows import check_row

        before = self.phase_index
        for index in range(len(self.phases)):
            self._select(index)
            for split, sources in (("train", self.current.train), ("heldout", self.current.heldout)):
                for slot, rows in self.read(split, sources).items():
                    for i in range(min(limit, len(rows))):
                        check_row(rows[i], f"data.{split}.{slot}", self)
        self._select(before)

    # --- opening ----------------------------------------------------------------------------------------------------------------------

    def open(self, weights: str | Path | None = None) -> None:
        """Load the policy (from `weights` where given) and start the engine."""
        from vlrl.optim import make_accelerator
        from vlrl.policy import Policy

        self.accelerator = make_accelerator(self)
        seed_everything(self.seed)
        self.policy = Policy(self.family, weights=weights, device=self.accelerator.device)
        self.engine.setup(self)

    def check_lengths(self) -> None:
        """Refuse rows whose prompt is longer than `max_prompt_tokens`: nothing is ever cut. Raises ConfigError with the row's id and length."""
        for split, sources in (("train", self.current.train), ("heldout", self.current.heldout)):
            for slot, rows in self.read(split, sources).items():
                for i in range(min(64, len(rows))):
                    self.check_length(self.scaffold(rows[i]), f"data.{split}.{slot}")

    def check_length(self, prompt: Any, where: str = "data") -> None:
        """The same for one prompt."""
        length = len(self.policy.encode(prompt))
        if length > self.settings.max_prompt_tokens:
            raise ConfigError(
                f"{where}: the prompt of row {prompt.row.id!r} has {length} tokens, max_prompt_tokens is {self.settings.max_prompt_tokens}; "
                "raise it, lower the policy's max_pixels, or drop the row (prompts are never truncated)"
            )

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

    # --- state ------------------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs besides weights, optimizer and random states."""
        return {
            "step": self.step,
            "phase": self.phase,
            "phase_step": self.phase_step,
            "seed": self.seed,
            "history": self.history,
            "plugins": {slot: state for slot, plugin in self.current.plugins() if (state := plugin.state_dict())},
            "engine": self.engine.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict` after `enter`. Raises ConfigError if the state is of a plug-in that the config no longer has."""
        self.step, self.phase_step = state["step"], state["phase_step"]
        self.history = dict(state["history"])
        plugins = dict(self.current.plugins())
        for slot, values in state["plugins"].items():
            if slot not in plugins:
                raise ConfigError(f"the checkpoint has state of {slot!r}, which this config does not name; resume with the run's own config.yaml")
            plugins[slot].load_state_dict(values)
        self.engine.load_state_dict(state["engine"])

    def close(self) -> None:
        """Free engine and trackers."""
        self.engine.close()


def seed_everything(seed: int) -> None:
    """Seed the global generators (weights of tiny models; nothing in the loop draws from them)."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _integer(tree: Mapping[str, Any], key: str, default: int) -> int:
    value = tree.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{key}: expected a whole number, got {value!r}")
    return value
