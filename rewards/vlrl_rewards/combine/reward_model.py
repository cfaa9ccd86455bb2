"""Rewards by trained reward models: scalar ones, and process reward models over the steps of a response."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlrl.beside.process import open_process_reward_model
from vlrl.beside.reward_model import (
    REWARD_MODEL,
    VERIFIER_MODEL,
    open_reward_model,
    verifier_model,
    with_reference,
)
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stage import BeforeSetupError
from vlrl.plugins.stages import Reward, State, transient
from vlrl.types import Group, Rollout
from vlrl_rewards.parsing import strip_thinking


@dataclass
class RewardModelState(State):
    """The model, loaded when the phase begins, and its scores of the current batch by rollout."""

    model: Any = transient()
    prepared: dict[int, float] = transient(factory=dict)


@dataclass(frozen=True, kw_only=True)
class ByRewardModel(Reward):
    """Base of rewards by a model in this process, which scores all rollouts of a batch together.

    Attributes:
        model: A folder or a hub id; "tiny" has random weights, for tests.
        thoughts: Whether the model sees what stands before `</think>`.
    """

    state_class = RewardModelState
    needs_gold: ClassVar[bool] = False
    provides: ClassVar[tuple[Capability, ...]] = (REWARD_MODEL,)
    model: str = ""
    thoughts: bool = True

    def check(self, phase: PhaseContext) -> None:
        if not self.model:
            raise ConfigError(f"rewards: {self.name!r} has no `model`; name a folder or a hub id")

    @property
    def opened(self) -> Any:
        """The model. Raises BeforeSetupError."""
        if self.state.model is None:
            raise BeforeSetupError(f"{self.kind} {self.name!r} was called before setup(run)")
        return self.state.model

    def text(self, rollout: Rollout) -> str:
        """What the model sees of a response."""
        return rollout.text if self.thoughts else strip_thinking(rollout.text)

    @abstractmethod
    def values(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The scores of rollouts."""

    def prepare(self, groups: Sequence[Group]) -> None:
        super().prepare(groups)
        rollouts = [rollout for group in groups for rollout in group]
        self.state.prepared = {id(r): value for r, value in zip(rollouts, self.values(rollouts), strict=True)}

    def __call__(self, rollout: Rollout) -> float:
        return self.score_group(Group(rollout.prompt, [rollout]))[0]

    def score_group(self, group: Group) -> list[float]:
        known = self.state.prepared
        missing = [rollout for rollout in group if id(rollout) not in known]
        found = dict(zip(map(id, missing), self.values(missing), strict=True)) if missing else {}
        return [found[id(r)] if id(r) in found else known.pop(id(r)) for r in group]


@register("reward_model")
@dataclass(frozen=True, kw_only=True)
class RewardModel(ByRewardModel):
    """A scalar reward model's score of a response.

        r = s,  or sigma(s) with `squash: sigmoid`

    s is a sequence classifier's value at the last token. `thoughts` false shows the model the text behind
    `</think>` alone. `form`: "completion" or "chat" (`vlrl.beside.reward_model`); "" is the folder's own.
    Paper: Ouyang et al. 2022, arXiv:2203.02155. Edge: a row with pictures raises ValueError. Unbounded
    without `squash`; a rollout is correct from `correct_at` (0) on.
    """

    correct_at: float = 0.0
    form: Literal["", "completion", "chat"] = ""
    squash: Literal["none", "sigmoid"] = "none"

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.model = open_reward_model(self.model, run.policy, self.form)

    def values(self, rollouts: Sequence[Rollout]) -> list[float]:
        scores = self.opened.scores([(rollout.prompt, self.text(rollout)) for rollout in rollouts])
        return [_sigmoid(score) for score in scores] if self.squash == "sigmoid" else list(scores)


@register("reference_reward_model")
@dataclass(frozen=True, kw_only=True)
class ReferenceRewardModel(RewardModel):
    """A verifier with a reference: a scalar reward model that reads question, reference answer and response.

        r = sigma(s)

    The model is one of the run, so that a callback can train it (`cooper`). Paper: Hong et al. 2025
    (VerifyRM), arXiv:2508.05613, sec. 3. The words around the reference are ours. Edge: a row without an
    answer, or with pictures, raises ValueError. 0 to 1 with `squash`; correct from 1/2 on.
    """

    needs_gold: ClassVar[bool] = True
    correct_at: float = 0.5
    squash: Literal["none", "sigmoid"] = "sigmoid"
    provides = (REWARD_MODEL, VERIFIER_MODEL)

    def setup(self, run: StageContext) -> None:
        Reward.setup(self, run)
        self.state.model = verifier_model(run, self.model, self.form)

    def values(self, rollouts: Sequence[Rollout]) -> list[float]:
        texts = [(with_reference(rollout.prompt), self.text(rollout)) for rollout in rollouts]
        scores = self.opened.scores(texts)
        return [_sigmoid(score) for score in scores] if self.squash == "sigmoid" else list(scores)


@register("step_reward_model")
@dataclass(frozen=True, kw_only=True)
class StepRewardModel(ByRewardModel):
    """A process reward model's scores of the steps of a response, as one number.

        r = reduce_k P(step k is right),  reduce: min, mean, last or product

    Steps are the parts between `delimiter`; the model reads each with `mark` behind it. Paper: Lightman et
    al. 2023, arXiv:2305.20050, sec. 2.6 (product and minimum); Wang et al. 2024, arXiv:2312.08935 (minimum).
    Edge: a response without text is worth 0. 0 to 1.
    """

    correct_at: float = 0.5
    delimiter: str = "\n"
    mark: str = "\n"
    reduce: Literal["min", "mean", "last", "product"] = "min"

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.model = open_process_reward_model(self.model, self.mark, run.policy)

    def values(self, rollouts: Sequence[Rollout]) -> list[float]:
        render = self.run.policy.render
        solutions = [(render(rollout.prompt), self.steps(rollout)) for rollout in rollouts]
        return [self.reduced([(1 + s) / 2 for s in scores]) for scores in self.opened.scores(solutions)]

    def steps(self, rollout: Rollout) -> list[str]:
        """The steps of a response, without the prompt's prefix, which the model reads with the prompt."""
        text = self.text(rollout).removeprefix(rollout.prompt.prefix)
        return [step.strip() for step in text.split(self.delimiter) if step.strip()]

    def reduced(self, right: Sequence[float]) -> float:
        """One number from the probabilities of the steps."""
        if not right:
            return 0.0
        if self.reduce == "mean":
            return math.fsum(right) / len(right)
        if self.reduce == "product":
            return math.prod(right)
        return right[-1] if self.reduce == "last" else min(right)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
