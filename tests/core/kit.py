"""Small plug-ins and runs for the tests of the loop: a policy of a few thousand weights, one prompt, rewards
made for the purpose."""

from dataclasses import dataclass

import torch

from vlrl.config import load
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward, Source
from vlrl.trainer.data.rows import check_lengths
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import collect
from vlrl.trainer.step.observer import RunObserver
from vlrl.trainer.views import StepView
from vlrl.types import Row

TINY = "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}"


@register("test_loop_source")
@dataclass(frozen=True, kw_only=True)
class Rows(Source):
    """`count` questions."""

    count: int = 4
    words: int = 1

    def __call__(self):
        return [Row(f"r{i}", f"{'Pick ' * self.words}{i}", answer="7", target="7") for i in range(self.count)]


@register("test_loop_has")
@dataclass(frozen=True)
class Has(Reward):
    """1 if the text holds a digit."""

    def __call__(self, rollout):
        return float(any(char.isdigit() for char in rollout.text))


@register("test_loop_ids")
@dataclass(frozen=True)
class Ids(Reward):
    """A number that differs from rollout to rollout."""

    def __call__(self, rollout):
        return float(sum(rollout.ids) % 7)


@register("test_loop_broken")
@dataclass(frozen=True)
class Broken(Reward):
    """Raises on one row."""

    row: str = "r1"

    def __call__(self, rollout):
        if rollout.row.id == self.row:
            raise RuntimeError("the judge is out")
        return float(len(rollout.ids) % 2)


@register("test_loop_constant")
@dataclass(frozen=True)
class Constant(Reward):
    """The same for all."""

    def __call__(self, rollout):
        return 1.0


class Log(RunObserver):
    """Keeps the warnings of a run."""

    def __init__(self):
        self.warnings = []

    def warned(self, message):
        self.warnings.append(message)


def open_run(tmp_path, *overrides, reward="test_loop_has", configs=("base/rl", "methods/grpo")):
    """A run on the tiny text policy, opened and in its first phase."""
    base = [
        TINY,
        f"output={tmp_path}",
        "data.train.mine.name=test_loop_source",
        "sampling={name: plain, max_tokens: 3}",
        "prompts_per_step=4",
    ]
    config = load(list(configs), [*base, f"rewards.mine.name={reward}", "optimizer.lr=1e-2", *overrides])
    run = Session(Plan.of(config))
    run.open()
    run.observers.members.append(Log())
    run.enter(0)
    check_lengths(run.policy, run.current)
    run.engine.sync(run.policy)
    return run


def warnings_of(run):
    """The warnings that a run gave."""
    return run.observers.members[0].warnings


def collected(run):
    """A step whose groups are collected."""
    view = StepView(run, run.begin_step())
    collect(view)
    return view


def weights(run):
    """All weights as one vector."""
    return torch.cat([p.detach().flatten() for p in run.policy.model.parameters()])
