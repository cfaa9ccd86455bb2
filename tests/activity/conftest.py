"""Plug-ins that do nothing, for the tests of the activity report."""

from dataclasses import dataclass

import torch

from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossTerm, Reward, RewardShaping, TokenWeight
from vlrl.types import UnreducedLoss


@register("test_activity_plus")
@dataclass(frozen=True)
class Plus(RewardShaping):
    """Adds the same number to every reward, or, with `of: length`, the share of a rollout's length."""

    of: str = ""

    def __call__(self, group):
        return [rollout.reward + (len(rollout) ** 2 / 100 if self.of else 1.0) for rollout in group]


@register("test_activity_zero")
@dataclass(frozen=True, kw_only=True)
class Zero(LossTerm):
    """A loss without gradient."""

    def __call__(self, x):
        return UnreducedLoss(torch.zeros_like(x.logp_BT), {})


@register("test_activity_one")
@dataclass(frozen=True)
class One(TokenWeight):
    """The same weight everywhere."""

    value: float = 1.0

    def __call__(self, x):
        return torch.full_like(x.mask_BT, self.value)


@register("test_activity_tagged")
@dataclass(frozen=True, kw_only=True)
class Tagged(Reward):
    """Pays an answer in a tag of its own alone."""

    def __call__(self, rollout):
        return float(f"<mine>{rollout.answer}</mine>" in rollout.text)
