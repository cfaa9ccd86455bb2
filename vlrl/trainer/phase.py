"""One phase of a plan: the part of the config that holds in it, with all its plug-ins built. Loads no model,
reads no data and imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vlrl.config import Config
from vlrl.config.settings import Settings, settings_of
from vlrl.plugins import stages as S
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.registry import ConfigError, build, get, suggest
from vlrl.plugins.separate_engine import SeparateEngine
from vlrl.services.delegation import Of
from vlrl.trainer.step.objective import Objective
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.policy.family import Family

T = TypeVar("T")

REQUIRED: dict[str, type[S.Stage]] = {
    "prompt_sampler": S.PromptSampler,
    "prompt_template": S.PromptTemplate,
    "sampling": S.SamplingPolicy,
    "rollout_budget": S.RolloutBudget,
    "rollout": S.RolloutStrategy,
    "advantage": S.AdvantageEstimator,
    "token_credit": S.TokenCredit,
    "policy_loss": S.PolicyLoss,
    "loss_aggregation": S.LossAggregation,
    "trainable": S.Trainable,
}
OPTIONAL: dict[str, type[S.Stage]] = {"environment": S.Environment, "replay": S.ReplayBuffer}
MAPS: dict[str, type[S.Stage]] = {
    "select": S.Select,
    "rewards": S.Reward,
    "reward_shaping": S.RewardShaping,
    "group_filters": S.GroupFilter,
    "token_weights": S.TokenWeight,
    "loss_terms": S.LossTerm,
    "callbacks": S.Callback,
    "metrics": S.Metric,
}


@dataclass(frozen=True, eq=False)
class RunParts:
    """What all phases of a plan share: the config, the kind of model, the engine, the seed, the folder, and
    the phases themselves, in order."""

    config: Config
    family: Family
    engine: S.Engine
    seed: int
    output: Path
    phases: list[PhasePlan] = field(default_factory=list)


@dataclass(frozen=True, eq=False, kw_only=True)
class PhasePlan:
    """A phase of a run: its settings, and its plug-ins by the names of their slots. See `PhaseContext`."""

    run: RunParts
    index: int
    phase: str
    tree: Mapping[str, Any]
    settings: Settings
    prompt_sampler: S.PromptSampler
    prompt_template: S.PromptTemplate
    sampling: S.SamplingPolicy
    rollout_budget: S.RolloutBudget
    rollout: S.RolloutStrategy
    advantage: S.AdvantageEstimator
    token_credit: S.TokenCredit
    policy_loss: S.PolicyLoss
    loss_aggregation: S.LossAggregation
    trainable: S.Trainable
    environment: S.Environment | None
    replay: S.ReplayBuffer | None
    select: Mapping[str, S.Select]
    rewards: Mapping[str, S.Reward]
    reward_shaping: Mapping[str, S.RewardShaping]
    group_filters: Mapping[str, S.GroupFilter]
    token_weights: Mapping[str, S.TokenWeight]
    loss_terms: Mapping[str, S.LossTerm]
    callbacks: Mapping[str, S.Callback]
    metrics: Mapping[str, S.Metric]
    train: dict[str, S.Source]
    heldout: dict[str, S.Source]
    outcome: Mapping[str, str]  # task -> reward slot; "" for all other tasks
    _rows: dict[str, dict[str, Sequence[Row]]] = field(default_factory=dict)  # by split, once they are read

    # --- what plug-ins see of it ----------------------------------------------------------------------------

    seed: ClassVar[Of[int]] = Of("run")
    output: ClassVar[Of[Path]] = Of("run")
    family: ClassVar[Of[Family]] = Of("run")
    group_size: ClassVar[Of[int]] = Of("settings")

    @property
    def has_heldout(self) -> bool:
        """Whether there are held-out rows."""
        return bool(self.heldout)

    @property
    def source_weights(self) -> dict[str, float]:
        """The weight of each training source."""
        return {slot: source.weight for slot, source in self.train.items()}

    @cached_property
    def objective(self) -> Objective:
        """The loss of the phase."""
        return Objective(self.policy_loss, self.loss_aggregation, self.token_weights, self.loss_terms)

    @cached_property
    def aux_tensors(self) -> dict[str, S.AuxTensor]:
        """The extra tensors that plug-ins need, and those that are logged, by name."""
        watched = ["entropy"] if self.settings.watch.entropy else []
        overrides = self.tree.get("aux_tensors") or {}
        needed = {*self.objective.needs, *self.signal_needs, *watched} - {"old_logp", "sampled_logp"}
        for unused in set(overrides) - needed:
            spec = overrides[unused]
            get(S.AuxTensor, spec["name"] if isinstance(spec, Mapping) else spec, f"aux_tensors.{unused}")
        return {
            need: build(S.AuxTensor, overrides.get(need, need), f"aux_tensors.{need}")
            for need in sorted(needed)
        }

    @property
    def signal_needs(self) -> list[str]:
        """Auxiliary tensors that are read before the loss: by reward shaping, group filters, replay,
        advantage, token credit and callbacks."""
        parts: list[S.Stage | None] = [self.advantage, self.token_credit, self.replay]
        parts += [*self.reward_shaping.values(), *self.group_filters.values(), *self.callbacks.values()]
        return sorted({name for part in parts if part is not None for name in part.needs})

    def has(self, capability: Capability) -> bool:
        """Whether a plug-in of the phase provides a capability."""
        return capability in self.provided

    def is_provided_anywhere(self, capability: Capability) -> bool:
        """Whether a plug-in of any phase of the run provides it."""
        return any(phase.has(capability) for phase in self.run.phases)

    @property
    def provided(self) -> set[Capability]:
        """All capabilities that the phase's plug-ins provide."""
        return {capability for _, plugin in self.plugins() for capability in plugin.provides}

    def outcome_slots(self, row: Row) -> list[str]:
        """Reward slots that can decide whether an answer to `row` is correct, best first.

        The configured `outcome`; then, in the order of the config, those with a weight that read the answer,
        those with a weight, and the others. Only slots that apply to the row.
        """
        rewards, named = self.rewards, self.outcome.get(row.task, self.outcome.get("", ""))
        slots = [slot for slot, reward in rewards.items() if applies(slot, reward.tasks, row)]
        return sorted(
            slots,
            key=lambda slot: (slot != named, rewards[slot].weight <= 0, not rewards[slot].reads_answer),
        )

    def outcome_slot(self, row: Row) -> str:
        """The first of `outcome_slots`. Raises ConfigError where no reward scores the row."""
        slots = self.outcome_slots(row)
        if not slots:
            raise ConfigError(
                f"rewards: none scores row {row.id!r} (task {row.task!r}), so no answer to it can be "
                "correct; add its task to a reward"
            )
        return slots[0]

    def rows(self, split: str) -> dict[str, Sequence[Row]]:
        """Rows of each source ("train" or "heldout"), read once; training rows go through the `select` chain.

        Raises ConfigError for an empty source.
        """
        if split in self._rows:
            return self._rows[split]
        out: dict[str, Sequence[Row]] = {}
        for slot, source in (self.train if split == "train" else self.heldout).items():
            read: Any = source()
            rows = read if isinstance(read, Sequence) else list(read)
            for select in self.select.values() if split == "train" else ():
                rows = select(rows)
            if not len(rows):
                raise ConfigError(f"data.{split}.{slot}: no rows are left")
            out[slot] = rows
        self._rows[split] = out
        return out

    @property
    def read_rows(self) -> dict[str, dict[str, Sequence[Row]]]:
        """Rows that were read so far, by split and source."""
        return self._rows

    def heldout_by_task(self) -> dict[str, list[Row]]:
        """Held-out rows by task."""
        by_task: dict[str, list[Row]] = {}
        for rows in self.rows("heldout").values():
            for row in rows:
                by_task.setdefault(row.task, []).append(row)
        return by_task

    # --- all plug-ins ---------------------------------------------------------------------------------------

    def plugins(self) -> Iterator[tuple[str, S.Stage]]:
        """(dotted slot, plug-in) of all of them, in a stable order; a reward is followed by the rewards that
        it holds, `rewards.SLOT.0` and so on."""
        for slot in (*REQUIRED, *OPTIONAL):
            if getattr(self, slot) is not None:
                yield slot, getattr(self, slot)
        maps = {group: getattr(self, group) for group in (*MAPS, "aux_tensors")}
        for group, members in {**maps, "data.train": self.train, "data.heldout": self.heldout}.items():
            for slot, plugin in members.items():
                yield f"{group}.{slot}", plugin
                if isinstance(plugin, S.Reward):
                    yield from _held(f"{group}.{slot}", plugin)

    def check(self) -> None:
        """Raise ConfigError for a capability that nothing provides, a reward slot that is not there, and what
        a plug-in refuses."""
        known = self.provided
        for slot, plugin in self.plugins():
            for capability in plugin.requires:
                if capability not in known:
                    fix = f"; set {capability.hint}" if capability.hint else ""
                    raise ConfigError(
                        f"{slot}: {plugin.name!r} requires {capability.name!r}, which no plug-in of this "
                        f"config provides{fix}"
                    )
        for slot, plugin in self.plugins():
            for name, reward in plugin.reward_slots:
                if reward not in self.rewards:
                    near = suggest(reward, self.rewards) if self.rewards else " It has none."
                    raise ConfigError(
                        f"{slot}.{name}: {reward!r} is no reward slot of phase {self.phase!r}.{near} Name a "
                        "slot or none"
                    )
        for _, plugin in self.plugins():
            plugin.check(self)


class PhaseAttributes(ABC):
    """The plug-ins of `current` by the names of their slots, and sums over ranks. See `PhaseContext`."""

    @property
    @abstractmethod
    def current(self) -> PhasePlan:
        """The phase in use."""

    seed: Of[int] = Of("current")
    output: Of[Path] = Of("current")
    family: Of[Family] = Of("current")
    phase: Of[str] = Of("current")
    settings: Of[Settings] = Of("current")
    group_size: Of[int] = Of("current")
    has_heldout: Of[bool] = Of("current")
    source_weights: Of[Mapping[str, float]] = Of("current")
    prompt_sampler: Of[S.PromptSampler] = Of("current")
    prompt_template: Of[S.PromptTemplate] = Of("current")
    sampling: Of[S.SamplingPolicy] = Of("current")
    rollout_budget: Of[S.RolloutBudget] = Of("current")
    rollout: Of[S.RolloutStrategy] = Of("current")
    environment: Of[S.Environment | None] = Of("current")
    rewards: Of[Mapping[str, S.Reward]] = Of("current")
    reward_shaping: Of[Mapping[str, S.RewardShaping]] = Of("current")
    group_filters: Of[Mapping[str, S.GroupFilter]] = Of("current")
    replay: Of[S.ReplayBuffer | None] = Of("current")
    advantage: Of[S.AdvantageEstimator] = Of("current")
    token_credit: Of[S.TokenCredit] = Of("current")
    objective: Of[Objective] = Of("current")
    aux_tensors: Of[Mapping[str, S.AuxTensor]] = Of("current")
    trainable: Of[S.Trainable] = Of("current")
    callbacks: Of[Mapping[str, S.Callback]] = Of("current")
    metrics: Of[Mapping[str, S.Metric]] = Of("current")
    has: Of[Callable[[Capability], bool]] = Of("current")
    is_provided_anywhere: Of[Callable[[Capability], bool]] = Of("current")
    outcome_slot: Of[Callable[[Row], str]] = Of("current")

    @abstractmethod
    def gather(self, values: Sequence[T]) -> list[T]:
        """The values of all ranks, the first of each, then the second of each: as rows are dealt to ranks.
        Plain Python values only."""

    def gather_and_clear(self, values: list[T]) -> list[T]:
        """`gather` of what a plug-in has recorded since the last call; the list is emptied. Called in
        `end_step`, which runs on every rank."""
        recorded = values[:]
        del values[: len(recorded)]
        return self.gather(recorded)

    def mean(self, total: float, count: float) -> float:
        """All ranks' totals over all ranks' counts, 0 where the count is 0."""
        parts = self.gather([(total, count)])
        return sum(total for total, _ in parts) / max(sum(count for _, count in parts), 1.0)


def _held(where: str, reward: S.Reward) -> Iterator[tuple[str, S.Stage]]:
    for index, inner in enumerate(reward.inner_rewards):
        yield f"{where}.{index}", inner
        yield from _held(f"{where}.{index}", inner)


def build_phase(run: RunParts, name: str, index: int) -> PhasePlan:
    """Build every plug-in of a phase. Raises ConfigError naming the slot."""
    tree = run.config.phase(name)
    parts: dict[str, Any] = {}
    for slot, stage in REQUIRED.items():
        if slot not in tree:
            raise ConfigError(
                f"{slot}: not set; name one (`vlrl list {stage.kind}`) or put `extends: [base/rl]` at the "
                "top of the config"
            )
        parts[slot] = build(stage, tree[slot], slot)
    for slot, stage in OPTIONAL.items():
        parts[slot] = build(stage, tree[slot], slot) if tree.get(slot) is not None else None
    data = tree.get("data") or {}
    if not isinstance(data, Mapping) or set(data) - {"train", "heldout"}:
        raise ConfigError(f"data: expected the maps `train` and `heldout`, got {data!r}")
    train = _build_map(S.Source, data.get("train"), "data.train")
    if not train:
        raise ConfigError(
            "data.train: no source; name one (`vlrl list source`) or add a task, for instance `vlrl train "
            "tasks/lab_digits ...`"
        )
    heldout = _build_map(S.Source, data.get("heldout"), "data.heldout")
    rewards = with_own_rewards(
        tree.get("rewards"), {**_prefixed("data.train", train), **_prefixed("data.heldout", heldout)}
    )
    for slot, stage in MAPS.items():
        parts[slot] = _build_map(stage, rewards if slot == "rewards" else tree.get(slot), slot)
    if tree.get("eval"):  # suites in training are a callback; the key of its own is for people
        parts["callbacks"]["eval"] = build(S.Callback, {"name": "eval", **tree["eval"]}, "eval")
    if not parts["rewards"] and parts["rollout"].samples:
        raise ConfigError(
            "rewards: none is set, so every rollout would score 0; name one (`vlrl list reward`)"
        )
    outcome = _outcome(tree.get("outcome"), parts["rewards"])
    settings = settings_of(tree)
    weights, engine = parts["token_weights"], run.engine
    parts_ways = isinstance(engine, SeparateEngine) and engine.is_off_policy(run.family.dtype, settings.loop)
    if parts_ways and parts["rollout"].samples and not any(w.corrects_engine for w in weights.values()):
        weights.setdefault("engine", build(S.TokenWeight, "tis", "token_weights.engine"))
    phase = PhasePlan(
        run=run, index=index, phase=name, tree=tree, settings=settings, train=train,
        heldout=heldout, outcome=outcome, **parts,
    )  # fmt: skip
    _ = phase.aux_tensors  # builds them: a mistake is reported here
    return phase


def _build_map(stage: type[S.Stage], tree: Any, where: str) -> dict[str, Any]:
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{where}: expected named plug-ins, like `{where}: {{my_name: {{name: ...}}}}`, got {tree!r}"
        )
    return {slot: build(stage, spec, f"{where}.{slot}") for slot, spec in tree.items()}


def with_own_rewards(tree: Any, sources: Mapping[str, S.Source]) -> Any:
    """The map `rewards` with the slots that sources bring along (`Source.own_rewards`) in front; the config
    may have an entry of its own.

    With the same `name` it changes fields, with another it replaces the reward. A slot that several sources
    bring scores the tasks of them all. Raises ConfigError where two sources mean different rewards by one
    slot.
    """
    own: dict[str, dict[str, Any]] = {}
    brought: dict[str, str] = {}
    for where, source in sources.items():
        for slot, spec in source.own_rewards.items():
            before = own.setdefault(slot, dict(spec))
            if {**before, "tasks": ()} != {**spec, "tasks": ()}:
                raise ConfigError(
                    f"{where}: brings another reward {slot!r} than {brought[slot]}; use the sources in "
                    "phases of their own"
                )
            tasks = [*before.get("tasks", ()), *spec.get("tasks", ())]
            own[slot]["tasks"] = (
                list(dict.fromkeys(tasks)) if before.get("tasks") and spec.get("tasks") else []
            )
            brought.setdefault(slot, where)
    if not own or not isinstance(tree or {}, Mapping):
        return tree
    for slot, spec in (tree or {}).items():
        changes = slot in own and isinstance(spec, Mapping) and spec.get("name") == own[slot]["name"]
        own[slot] = {**own[slot], **spec} if changes else spec
    return own


def _prefixed(where: str, sources: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{where}.{slot}": source for slot, source in sources.items()}


def _outcome(tree: Any, rewards: Mapping[str, S.Reward]) -> dict[str, str]:
    """`outcome: slot`, or `outcome: {task: slot}`, as task -> slot. Raises ConfigError for an unknown
    slot."""
    named = {"": tree} if isinstance(tree, str) else dict(tree or {})
    for task, slot in named.items():
        if slot not in rewards:
            where = f"outcome.{task}" if task else "outcome"
            raise ConfigError(f"{where}: no reward slot {slot!r}.{suggest(slot, rewards)}")
    return named


def applies(slot: str, tasks: tuple[str, ...], row: Row) -> bool:
    """Whether a reward slot scores a row: the row names it, or names none and its task is the slot's."""
    if row.rewards:
        return slot in row.rewards
    return not tasks or row.task in tasks
