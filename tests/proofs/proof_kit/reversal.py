"""The reversed run of a proof: its plug-in with the sign, the order or the choice turned round.

An item of `reversed` is an override (`loss_terms.kl.coef=-0.04`), or a slot whose plug-in is turned round:

    rewards, loss_terms                   their `weight` or `coef` with the other sign
    reward_shaping                        r' = 2 r - shaping(r)
    advantage, policy_loss, aggregation   x' = 2 x_off - x, with what the slot has when the mechanism is off
    token_credit                          c' = 2 A - c
    token_weights                         w' = max w + min w - w: the complement of a mask
    group_filters, select                 the groups, the rows that it drops
    rollout_budget                        the most rollouts for the prompt that had the fewest
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from proof_kit.proof import Proof, proof_config
from vlrl.config import Config, at
from vlrl.plugins import stages as S
from vlrl.plugins.registry import ConfigError, build, get, register
from vlrl.types import FilterDecision, PerToken

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
        parts = [(tree, off.tree)]
        for name, own in (tree.get("phases") or {}).items():
            parts.append((own or {}, off.phase(name if name in off.phases else off.phases[-1])))
        found = [turn(part, path, at(other, path)) for part, other in parts]
        if not any(found):
            raise ConfigError(f"{preset}: reversed: nothing at {path!r}")
    return Config(tree, config.origins, config.kept)


def turn(tree: Any, path: str, other: Any) -> bool:
    """Turn the plug-in at `path` round, in place; False where there is none. `other`: what the off side has
    there."""
    spec = at(tree, path)
    spec = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(spec, dict) or "name" not in spec:  # a phase may change a field alone
        return False
    slot, _, name = path.partition(".")
    holder, key = (tree[slot], name) if name else (tree, slot)
    if slot in SIGNS:
        stage, field = SIGNS[slot]
        default = get(stage, spec["name"], path).__dataclass_fields__[field].default
        holder[key] = {**spec, field: -spec.get(field, default)}
    elif slot in TURNED:
        stage, make = TURNED[slot]
        cls = get(stage, spec["name"], path)
        missing = not isinstance(other, (str, dict))
        plain = None if missing else build(stage, other, path)
        twin = type(f"Reversed{cls.__name__}", (cls,), make(cls, plain))
        number = sum(known.startswith(f"reversed {cls.name}") for known in REVERSED)
        REVERSED.append(f"reversed {cls.name} {number}")
        holder[key] = {**spec, "name": register(REVERSED[-1])(twin).name}
    else:
        raise ConfigError(f"reversed: {path}: no way to turn this slot round; write overrides")
    return True


REVERSED: list[str] = []  # names of the classes made so far


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
        pairs = zip(cls.__call__(self, groups), ready(self, plain)(groups), strict=True)
        return [[2 * old - new for new, old in zip(*pair, strict=True)] for pair in pairs]

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

    def call(self: Any, x: Any) -> PerToken:
        own, other = cls.__call__(self, x), ready(self, plain)(x).loss
        if own.loss.dim() != other.dim():
            raise ConfigError(
                "reversed: policy_loss: one of a sequence, the other of a token; write overrides"
            )
        return PerToken(2 * other - own.loss, own.metrics)

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
        return 2 * plain.weights(x, loss_denominators) - cls.weights(self, x, loss_denominators)

    return {"weights": weights}
