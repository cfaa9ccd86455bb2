"""The reversed run of a proof: its plug-in with the sign, the order or the choice turned round.

An item of `reversed` is an override (`rollout.weight=-0.2`), or one of

    rewards.NAME, loss_terms.NAME         their `weight` or `coef` with the other sign
    rewards                               r' = 2 r_off - r, with all rewards of the off side
    -SLOT.FIELD                           a number of a plug-in with the other sign, past its own checks
    reward_shaping                        r' = 2 r - shaping(r)
    advantage, policy_loss                x' = 2 x_off - x, with what the slot has when the mechanism is off
    loss_aggregation                      w' = w_off^2 / w, likewise
    token_credit                          c' = 2 A - c
    token_weights                         w' = max w + min w - w: the complement of a mask
    group_filters, select                 the groups, the rows that it drops
    rollout_budget                        the most rollouts for the prompt that had the fewest
    rollout, replay, prompt_sampler,      right and wrong swapped in what it decides by (mirror.py): what it
    callbacks                             does for hard prompts it does for easy ones
    SLOT/FUNCTION                         what it ranks by, a function of its module, with the other sign
    sampling/order                        temperatures by position in the other order
    rollout/mask                          trains the tokens that it leaves out
    SLOT/schedule                         its schedule over the phase's steps run backwards
    phases                                the phases in the other order: the first has what the last had

`reversed: none` with a reason (`why`) is for what has no opposite, such as a gain in speed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from proof_kit import mirror
from proof_kit.proof import Proof, proof_config
from vlrl.config import Config, at
from vlrl.config.config import SLOTS
from vlrl.plugins import stages as S
from vlrl.plugins.registry import ConfigError, build, get, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.types import FilterDecision, UnreducedLoss

SIGNS = {"rewards": (S.Reward, "weight"), "loss_terms": (S.LossTerm, "coef")}
TURNED: dict[str, tuple[Any, Callable[[Any, Any], dict[str, Any]]]] = {}  # slot -> stage, what is replaced


def turns(slot: str, stage: Any) -> Callable[[Any], Any]:
    """Register the maker of the methods of a slot's reversed class; it gets the class and the plug-in of the
    off side."""

    def add(make: Callable[[Any, Any], dict[str, Any]]) -> Any:
        TURNED[slot] = stage, make
        return make

    return add


def reversed_config(preset: str, task: str, proof: Proof, on: Config, off: Config) -> Config:
    """The config of the reversed run. Raises ConfigError for a slot that is not there or cannot be turned
    round."""
    overrides = [item for item in proof.reversed if "=" in item]
    config = proof_config(preset, task, proof, [*proof.on, *overrides]) if overrides else on
    tree = copy.deepcopy(config.tree)
    for path in (item for item in proof.reversed if "=" not in item):
        if path == "phases":
            tree["phases"] = swapped(tree.get("phases") or {})
            continue
        if path == "rewards":
            tree["rewards"] = about_off(tree["rewards"], off.tree["rewards"])
            continue
        parts = [(tree, off.tree)]
        for name, own in (tree.get("phases") or {}).items():
            parts.append((own or {}, off.phase(name if name in off.phases else off.phases[-1])))
        found = [turn(part, path, at(other, path)) for part, other in parts]
        if not any(found):
            raise ConfigError(f"{preset}: reversed: nothing at {path!r}")
    return Config(tree, config.origins, config.kept)


def swapped(phases: dict[str, Any]) -> dict[str, Any]:
    """The same phases in the other order, under the names of the places that they take."""
    if len(phases) < 2:
        raise ConfigError("reversed: phases: there is one, which has no order")
    return dict(zip(phases, reversed(copy.deepcopy(list(phases.values())))))


def about_off(on: dict[str, Any], off: dict[str, Any]) -> dict[str, Any]:
    """Rewards whose sum is 2 r_off - r_on: slots that differ with the other sign, and those of the off side
    twice."""

    def scaled(slot: str, spec: Any, factor: float) -> dict[str, Any]:
        spec = {"name": spec} if isinstance(spec, str) else spec
        default = get(S.Reward, spec["name"], f"rewards.{slot}").__dataclass_fields__["weight"].default
        return {**spec, "weight": factor * spec.get("weight", default)}

    own = {
        slot: spec if spec is None or spec == off.get(slot) else scaled(slot, spec, -1.0)
        for slot, spec in on.items()
    }
    usual = {
        f"{slot}_off": scaled(slot, spec, 2.0) for slot, spec in off.items() if spec and spec != on.get(slot)
    }
    return own | usual


def turn(tree: Any, path: str, other: Any) -> bool:
    """Turn the plug-in at `path` round, in place; False where there is none. `other`: what the off side has
    there."""
    negated, path, manner = path.startswith("-"), *path.removeprefix("-").partition("/")[::2]
    if negated:
        path, _, manner = path.rpartition(".")
    spec = at(tree, path)
    spec = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(spec, dict) or "name" not in spec:  # a phase may change a field alone
        return False
    slot, _, name = path.partition(".")
    holder, key = (tree[slot], name) if name else (tree, slot)
    if manner:
        cls = get(S.STAGES[SLOTS[slot]], spec["name"], path)
        if negated:
            methods = negative(cls, manner)
        else:
            methods = MANNERS[manner](cls) if manner in MANNERS else mirror.by_low(cls, manner)
        if not methods:
            return False
        holder[key] = {**spec, "name": twin_of(cls, methods)}
    elif slot in SIGNS:
        stage, field = SIGNS[slot]
        default = get(stage, spec["name"], path).__dataclass_fields__[field].default
        holder[key] = {**spec, field: -spec.get(field, default)}
    elif slot in TURNED:
        stage, make = TURNED[slot]
        cls = get(stage, spec["name"], path)
        missing = not isinstance(other, (str, dict))
        plain = None if missing else build(stage, other, path)
        holder[key] = {**spec, "name": twin_of(cls, make(cls, plain))}
    else:
        raise ConfigError(f"reversed: {path}: no way to turn this slot round; write overrides")
    return True


REVERSED: list[str] = []  # names of the classes made so far


def twin_of(cls: Any, methods: dict[str, Any]) -> str:
    """Register a class with other methods; its name in a config."""
    REVERSED.append(f"reversed {cls.name} {len(REVERSED)}")
    return register(REVERSED[-1])(type(f"Reversed{cls.__name__}", (cls,), methods)).name


def negative(cls: Any, field: str) -> dict[str, Any]:
    """Methods of a class whose number `field` has the other sign, past the class's own check."""

    def init(self: Any, *args: Any, **values: Any) -> None:
        cls.__init__(self, *args, **values)
        object.__setattr__(self, field, -getattr(self, field))

    return {"__init__": init}


MANNERS = {"order": mirror.order_of_temperatures, "schedule": mirror.backwards, "mask": mirror.complement}
TURNED["rollout"] = S.RolloutStrategy, mirror.strategy
TURNED["replay"] = S.ReplayBuffer, mirror.replay
TURNED["prompt_sampler"] = S.PromptSampler, mirror.sampler
TURNED["callbacks"] = S.Callback, mirror.callback


def ready(self: Any, plain: Any) -> Any:
    """The plug-in of the off side, set up as `self` is."""
    if self.is_set_up and not plain.is_set_up:
        plain.setup(self.run)
    return plain


@turns("reward_shaping", S.RewardShaping)
def _shaping(cls: Any, plain: Any) -> dict[str, Any]:
    def call(self: Any, group: Any) -> list[float]:
        before = list(group.rewards)
        return [2 * old - new for old, new in zip(before, cls.__call__(self, group), strict=True)]

    return {"__call__": call}


@turns("group_filters", S.GroupFilter)
def _filter(cls: Any, plain: Any) -> dict[str, Any]:
    def call(self: Any, group: Any) -> FilterDecision:
        return FilterDecision(not cls.__call__(self, group).keep, "reversed")

    return {"__call__": call}


@turns("select", S.Select)
def _select(cls: Any, plain: Any) -> dict[str, Any]:
    def call(self: Any, rows: Any) -> Any:
        kept = list(cls.__call__(self, rows))
        ids = {row.id for row in kept}
        return [row for row in rows if row.id not in ids] or kept[::-1]

    return {"__call__": call}


@turns("rollout_budget", S.RolloutBudget)
def _budget(cls: Any, plain: Any) -> dict[str, Any]:
    def call(self: Any, prompts: Any, total: int) -> list[int]:
        counts = cls.__call__(self, prompts, total)
        order = sorted(range(len(counts)), key=lambda place: counts[place])
        turned = list(counts)
        for place, other in zip(order, reversed(order)):
            turned[place] = counts[other]
        return turned

    return {"__call__": call}


@turns("advantage", S.AdvantageEstimator)
def _advantage(cls: Any, plain: Any) -> dict[str, Any]:
    def prepare(self: Any, groups: Any) -> None:
        cls.prepare(self, groups)
        ready(self, plain).prepare(groups)

    def call(self: Any, groups: Any) -> list[list[float]]:
        own = cls.__call__(self, groups)
        rollouts = [rollout for group in groups for rollout in group]
        by_token = {id(r): list(TOKEN_ADVANTAGES[r]) for r in rollouts if TOKEN_ADVANTAGES.on(r)}
        other = ready(self, plain)(groups)
        for group, usual in zip(groups, other, strict=True):
            for rollout, old in zip(group, usual, strict=True):
                if new := by_token.get(id(rollout)):
                    same = TOKEN_ADVANTAGES in plain.provides
                    before = TOKEN_ADVANTAGES[rollout] if same else [old] * len(new)
                    TOKEN_ADVANTAGES.set(rollout, [2 * b - a for a, b in zip(new, before, strict=True)])
        return [
            [2 * old - new for new, old in zip(*pair, strict=True)] for pair in zip(own, other, strict=True)
        ]

    return {"prepare": prepare, "__call__": call}


@turns("token_credit", S.TokenCredit)
def _credit(cls: Any, plain: Any) -> dict[str, Any]:
    def call(self: Any, group: Any, advantages: Any) -> list[list[float]]:
        spread = cls.__call__(self, group, advantages)
        return [[2 * a - value for value in own] for own, a in zip(spread, advantages, strict=True)]

    return {"__call__": call}


@turns("policy_loss", S.PolicyLoss)
def _loss(cls: Any, plain: Any) -> dict[str, Any]:
    def needs(self: Any) -> tuple[str, ...]:
        own = cls.needs.fget(self) if isinstance(cls.needs, property) else cls.needs
        return tuple(dict.fromkeys([*own, *plain.needs]))

    def call(self: Any, x: Any) -> UnreducedLoss:
        own, other = cls.__call__(self, x), ready(self, plain)(x).loss
        if own.loss.dim() < other.dim():  # a loss per sequence: the other one's mean over tokens
            other = (other * x.mask_BT).sum(1) / x.mask_BT.sum(1).clamp(min=1)
        return UnreducedLoss(2 * other - own.loss, own.metrics)

    return {"needs": property(needs), "__call__": call}


@turns("token_weights", S.TokenWeight)
def _weight(cls: Any, plain: Any) -> dict[str, Any]:
    def call(self: Any, x: Any) -> torch.Tensor:
        weights_BT = cls.__call__(self, x).expand_as(x.mask_BT)
        chosen = weights_BT[x.mask_BT > 0]
        return weights_BT if not len(chosen) else chosen.max() + chosen.min() - weights_BT

    return {"__call__": call}


@turns("loss_aggregation", S.LossAggregation)
def _aggregation(cls: Any, plain: Any) -> dict[str, Any]:
    def weights(self: Any, x: Any, loss_denominators: Any) -> torch.Tensor:
        return plain.weights(x, loss_denominators) ** 2 / cls.weights(self, x, loss_denominators)

    return {"weights": weights}
