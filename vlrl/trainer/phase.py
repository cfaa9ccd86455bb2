"""One phase of a run: the part of the config that holds in it, with all its plug-ins built. Loads no model
and reads no data; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vlrl.config import Config
from vlrl.config.settings import Settings, settings_of
from vlrl.plugins import stages as S
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.registry import ConfigError, build, get, suggest
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.trainer.step.loss import Objective

Builder = Callable[
    [Any, Any, str], Any
]  # (stage, spec, config path) -> plug-in, as `vlrl.plugins.registry.build`
_SINGLE: dict[str, type[S.Stage]] = {
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
_OPTIONAL: dict[str, type[S.Stage]] = {"environment": S.Environment, "replay": S.ReplayBuffer}
_MAPS: dict[str, type[S.Stage]] = {
    "select": S.Select,
    "rewards": S.Reward,
    "reward_shaping": S.RewardShaping,
    "group_filters": S.GroupFilter,
    "token_weights": S.TokenWeight,
    "loss_terms": S.LossTerm,
    "callbacks": S.Callback,
    "metrics": S.Metric,
}


@dataclass
class Phase:
    """The plug-ins of one phase, by slot."""

    name: str
    tree: Mapping[str, Any]
    settings: Settings
    slots: dict[str, Any]
    maps: dict[str, dict[str, Any]]
    train: dict[str, S.Source]
    heldout: dict[str, S.Source]
    aux_tensors: dict[str, S.AuxTensor] = field(default_factory=dict)
    outcome: Mapping[str, str] = field(default_factory=dict)  # task -> reward slot; "" for all other tasks

    def plugins(self) -> Iterator[tuple[str, S.Stage]]:
        """(dotted slot, plug-in) of all of them, in a stable order; a reward is followed by the rewards that
        it holds, `rewards.SLOT.0` and so on."""
        for slot, plugin in self.slots.items():
            if plugin is not None:
                yield slot, plugin
        for group, members in (
            *self.maps.items(),
            ("aux_tensors", self.aux_tensors),
            ("data.train", self.train),
            ("data.heldout", self.heldout),
        ):
            for slot, plugin in members.items():
                yield f"{group}.{slot}", plugin
                if isinstance(plugin, S.Reward):
                    yield from _held(f"{group}.{slot}", plugin)

    @cached_property
    def objective(self) -> Objective:
        """The loss of the phase."""
        from vlrl.trainer.step.loss import Objective

        return Objective(
            self.slots["policy_loss"],
            self.slots["loss_aggregation"],
            self.maps["token_weights"],
            self.maps["loss_terms"],
        )

    def outcome_slots(self, row: Row) -> list[str]:
        """Reward slots that can decide whether an answer to `row` is correct, best first: the configured
        `outcome`; then, in the order of the config, those with a weight that read the answer, those with a
        weight, and the others. Only slots that apply to the row."""
        rewards: Mapping[str, S.Reward] = self.maps["rewards"]
        named = self.outcome.get(row.task, self.outcome.get("", ""))
        slots = [slot for slot, reward in rewards.items() if applies(slot, reward.tasks, row)]
        return sorted(
            slots, key=lambda slot: (slot != named, rewards[slot].weight <= 0, not rewards[slot].reads_answer)
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

    @property
    def signal_needs(self) -> list[str]:
        """Auxiliary tensors that are read before the loss: by reward shaping, group filters, replay,
        advantage, token credit and callbacks."""
        parts = [
            self.slots["advantage"],
            self.slots["token_credit"],
            self.slots["replay"],
            *self.maps["reward_shaping"].values(),
            *self.maps["group_filters"].values(),
        ]
        parts += self.maps["callbacks"].values()
        return sorted({name for part in parts if part is not None for name in part.needs})


def _held(where: str, reward: S.Reward) -> Iterator[tuple[str, S.Stage]]:
    for index, inner in enumerate(reward.inner_rewards):
        yield f"{where}.{index}", inner
        yield from _held(f"{where}.{index}", inner)


def build_phase(config: Config, name: str) -> Phase:
    """Build every plug-in of a phase. Raises ConfigError naming the slot."""
    phase = build_parts(config, name)
    watched = ["entropy"] if phase.settings.watch.entropy else []
    overrides = phase.tree.get("aux_tensors") or {}
    for need in sorted(
        {*phase.objective.needs, *phase.signal_needs, *watched} - {"old_logp", "sampled_logp"}
    ):
        phase.aux_tensors[need] = build(S.AuxTensor, overrides.get(need, need), f"aux_tensors.{need}")
    for unused in set(overrides) - set(phase.aux_tensors):
        get(
            S.AuxTensor,
            overrides[unused]["name"] if isinstance(overrides[unused], Mapping) else overrides[unused],
            f"aux_tensors.{unused}",
        )
    return phase


def build_parts(config: Config, name: str, builder: Builder = build) -> Phase:
    """The phase without its aux tensors, whose plug-ins `builder` makes. Raises ConfigError naming the
    slot."""
    tree = config.phase(name)
    settings = settings_of(tree)
    slots: dict[str, Any] = {}
    for slot, stage in _SINGLE.items():
        if slot not in tree:
            raise ConfigError(
                f"{slot}: not set; name one (`vlrl list {stage.kind}`) or put `extends: [base/rl]` at the "
                "top of the config"
            )
        slots[slot] = builder(stage, tree[slot], slot)
    for slot, stage in _OPTIONAL.items():
        slots[slot] = builder(stage, tree[slot], slot) if tree.get(slot) is not None else None
    data = tree.get("data") or {}
    if not isinstance(data, Mapping) or set(data) - {"train", "heldout"}:
        raise ConfigError(f"data: expected the maps `train` and `heldout`, got {data!r}")
    train = _build_map(S.Source, data.get("train"), "data.train", builder)
    if not train:
        raise ConfigError(
            "data.train: no source; name one (`vlrl list source`) or add a task, for instance `vlrl train "
            "tasks/lab_digits ...`"
        )
    heldout = _build_map(S.Source, data.get("heldout"), "data.heldout", builder)
    rewards = with_own_rewards(
        tree.get("rewards"), {**_prefixed("data.train", train), **_prefixed("data.heldout", heldout)}
    )
    maps = {
        slot: _build_map(stage, rewards if slot == "rewards" else tree.get(slot), slot, builder)
        for slot, stage in _MAPS.items()
    }
    if tree.get("eval"):  # suites in training are a callback; the key of its own is for people
        maps["callbacks"]["eval"] = builder(S.Callback, {"name": "eval", **tree["eval"]}, "eval")
    if not maps["rewards"] and slots["rollout"].samples:
        raise ConfigError(
            "rewards: none is set, so every rollout would score 0; name one (`vlrl list reward`)"
        )
    outcome = _outcome(tree.get("outcome"), maps["rewards"])
    return Phase(name, tree, settings, slots, maps, train, heldout, outcome=outcome)


def _build_map(stage: type[S.Stage], tree: Any, where: str, builder: Builder) -> dict[str, Any]:
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{where}: expected named plug-ins, like `{where}: {{my_name: {{name: ...}}}}`, got {tree!r}"
        )
    return {slot: builder(stage, spec, f"{where}.{slot}") for slot, spec in tree.items()}


def with_own_rewards(tree: Any, sources: Mapping[str, Any]) -> Any:
    """The map `rewards` with the slots that sources bring along (`Source.own_rewards`) in front; the config
    may have an entry of its own.

    With the same `name` it changes fields, with another it replaces the reward. A slot that several sources
    bring scores the tasks of them all. Raises ConfigError where two sources mean different rewards by one
    slot.
    """
    own: dict[str, dict[str, Any]] = {}
    brought: dict[str, str] = {}
    for where, source in sources.items():
        for slot, spec in getattr(
            source, "own_rewards", {}
        ).items():  # a stand-in for a plug-in that imports torch has none
            before = own.setdefault(slot, dict(spec))
            if {**before, "tasks": ()} != {**spec, "tasks": ()}:
                raise ConfigError(
                    f"{where}: brings another reward {slot!r} than {brought[slot]}; use the sources in "
                    "phases of their own"
                )
            tasks = (
                [*before.get("tasks", ()), *spec.get("tasks", ())]
                if before.get("tasks") and spec.get("tasks")
                else []
            )
            own[slot]["tasks"] = list(dict.fromkeys(tasks))
            brought.setdefault(slot, where)
    if not own or not isinstance(tree or {}, Mapping):
        return tree
    named = dict(tree or {})
    for slot, spec in named.items():
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


def provided(phase: Phase) -> set[Capability]:
    """All capabilities that the phase's plug-ins provide."""
    return {capability for _, plugin in phase.plugins() for capability in plugin.provides}


def check_requirements(phase: Phase) -> None:
    """Raise ConfigError for a plug-in whose required capability no plug-in of the phase provides."""
    known = provided(phase)
    for slot, plugin in phase.plugins():
        for capability in plugin.requires:
            if capability not in known:
                fix = f"; set {capability.hint}" if capability.hint else ""
                raise ConfigError(
                    f"{slot}: {plugin.name!r} requires {capability.name!r}, which no plug-in of this "
                    f"config provides{fix}"
                )
