"""The plug points: one abstract class per stage of a step. A plug-in is a frozen dataclass: its fields are its config, `__call__` is the method.

`needs` names the extra tensors a plug-in reads, `check` refuses impossible runs at start-up, `setup` is called once when the run is built,
`state_dict` / `load_state_dict` carry what was learned over a restart. Learned state lives in fields made with `field(init=False)`.

A plug-in imports no part of the trainer. What it needs of it, the run that it is handed does (`vlrl/toolbox.py`): `run.batch(groups)` and
`run.micro_batches(groups)` for forwards of its own, `run.score(groups)` for rewards before the loop asks for them, `run.gather(values)` and
`run.sum_tensor(tensor)` for what all ranks must agree on, `run.accuracy()` for the held-out rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.types import Completion, FilterDecision, Group, LossInputs, Message, PerToken, Prompt, Request, Rollout, Row, Sampling, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.policy import Policy
    from vlrl.trainer.run import Run


class Stage(ABC):  # noqa: B024
    """What every plug point shares."""

    name: ClassVar[str] = ""
    home: ClassVar[str] = ""
    needs: Sequence[str] = ()  # a class attribute, or a property where it depends on the config

    def check(self, run: Run) -> None:
        """Raise ConfigError, with the reason and what to use instead, if this plug-in cannot work in `run`."""

    def setup(self, run: Run) -> None:
        """Called once, when everything is built."""

    def observe(self, groups: Sequence[Group]) -> None:
        """Learn from what a finished step sampled, on all ranks (groups of other ranks come without media): each rank learns the same.

        Asked of all that decides what is sampled: sampler, scaffold, budget, decode and strategy. Only the strategy, which made them, sees
        demonstrations and replayed rollouts; the others see what the policy answered.
        """

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as plain values (JSON) or tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Numbers for the log, read once per step on every rank: the mean over ranks of a number; of a (sum, count) all sums over all counts.

        A count of 0 marks what adds up.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class Source(Stage):
    """Where rows come from. `weight` is its share when several are mixed (0: as many rows as it has)."""

    kind: ClassVar[str] = "source"
    home: ClassVar[str] = "vlrl_data"
    weight: float = 0.0

    @abstractmethod
    def __call__(self) -> Iterable[Row]: ...


class Select(Stage):
    """Keeps, drops or reorders rows, once, before training."""

    kind: ClassVar[str] = "select"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]: ...


class PromptSampler(Stage):
    """Which rows come next. Must be a function of its state alone: a restart continues with the same rows."""

    kind: ClassVar[str] = "prompt_sampler"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, n: int) -> list[Row]: ...


class PromptTemplate(Stage):
    """Row to prompt: template, system prompt, hints."""

    kind: ClassVar[str] = "prompt_template"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, row: Row) -> Prompt: ...


class SamplingPolicy(Stage):
    """How a prompt's `attempt`-th completion is sampled."""

    kind: ClassVar[str] = "sampling_policy"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, prompt: Prompt, attempt: int) -> Sampling: ...


class RolloutBudget(Stage):
    """How many rollouts each prompt gets; the counts sum to `total`."""

    kind: ClassVar[str] = "rollout_budget"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, prompts: Sequence[Prompt], total: int) -> list[int]: ...


class Engine(Stage):
    """Samples completions. `version` counts the policy updates it has received."""

    kind: ClassVar[str] = "engine"
    home: ClassVar[str] = "vlrl.engine"

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> Iterable[Completion]:
        """Completions as they finish, in any order; every request yields exactly its `n`."""

    @abstractmethod
    def sync(self, policy: Policy) -> None:
        """Take over the policy's weights."""

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of `ids` after `prompt` at temperature 1."""
        raise NotImplementedError(f"engine {self.name!r} cannot score; use engine 'hf'")

    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        """`score` of many; engines that can, batch it."""
        return [self.score(prompt, ids) for prompt, ids in pairs]

    def close(self) -> None:
        """Free what the engine holds."""


class RolloutStrategy(Stage):
    """Prompts to groups of rollouts, through an engine."""

    kind: ClassVar[str] = "rollout_strategy"
    home: ClassVar[str] = "vlrl.methods"
    samples: ClassVar[bool] = True  # False: makes its rollouts without an engine

    @abstractmethod
    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]: ...


class Environment(Stage):
    """Answers a rollout with further messages (a tool's result), or None when the conversation is over."""

    kind: ClassVar[str] = "environment"
    home: ClassVar[str] = "vlrl.environments"

    @abstractmethod
    def reply(self, rollout: Rollout) -> Sequence[Message] | None: ...


@dataclass(frozen=True, kw_only=True)
class Reward(Stage):
    """Scores a rollout. Raise on a broken gold answer or verifier, never on a bad response: that is a score.

    `weight` is its factor in the sum (0: only logged). `tasks` limits it to rows of these tasks; empty means all.
    """

    kind: ClassVar[str] = "reward"
    home: ClassVar[str] = "vlrl_rewards"
    reads_answer: ClassVar[bool] = True  # False: looks at form or length only, so a row without an answer is fine
    weight: float = 1.0
    tasks: tuple[str, ...] = ()

    @abstractmethod
    def __call__(self, rollout: Rollout) -> float | Awaitable[float]: ...

    def score(self, group: Group) -> list[float] | Awaitable[list[float]] | list[Awaitable[float]]:
        """All rollouts of a group; override where siblings matter."""
        return [self(rollout) for rollout in group]  # type: ignore[return-value]


class RewardShaping(Stage):
    """New total rewards of a group (a chain: each reads what the one before it wrote to `rollout.reward`)."""

    kind: ClassVar[str] = "reward_shaping"
    home: ClassVar[str] = "vlrl.methods"
    punishes_length: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, group: Group) -> list[float]: ...


class GroupFilter(Stage):
    """Whether a scored group is trained on. Dropped groups are counted by reason and replaced."""

    kind: ClassVar[str] = "group_filter"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, group: Group) -> FilterDecision: ...


class ReplayBuffer(Stage):
    """Adds stored or expert rollouts to the fresh groups, and may remember these."""

    kind: ClassVar[str] = "replay_buffer"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> list[Group]: ...


class AdvantageEstimator(Stage):
    """One number per rollout. Sees the groups of all ranks (those of others without media, and without signals of many numbers per token)."""

    kind: ClassVar[str] = "advantage_estimator"
    home: ClassVar[str] = "vlrl.methods"
    writes_tokens: ClassVar[bool] = False  # True: leaves one number per token in `rollout.info["token_advantages"]`, for credit `per_token`

    def prepare(self, groups: Sequence[Group]) -> None:
        """Take from this rank's own groups, before the others see them, what stays behind: into `rollout.info`."""

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> list[list[float]]: ...


class TokenCredit(Stage):
    """A rollout's advantage spread over its tokens: one list per rollout, as long as its ids."""

    kind: ClassVar[str] = "token_credit"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]: ...


class AuxTensor(Stage):
    """An extra tensor, computed only if some plug-in `needs` its name.

    A field that reads the policy's own distribution overrides `from_logits` and sets `in_forward`: it is evaluated chunk by chunk inside the training
    forward. Any other field overrides `__call__`, which runs without gradient before it.
    """

    kind: ClassVar[str] = "aux_tensor"
    home: ClassVar[str] = "vlrl.methods"
    in_forward: ClassVar[bool] = False
    reads_hidden: ClassVar[bool] = False  # with in_forward: `from_hidden` instead of `from_logits`
    at_start: ClassVar[bool] = False  # of the policy that the step starts from: computed before its first update

    def __call__(self, policy: Policy, batch: TokenBatch) -> Tensor:
        """(B, T), or (B, T, K)."""
        raise NotImplementedError(f"field {self.name!r} is computed in the forward")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        """(N,) or (N, K) from temperature-scaled float32 logits of N completion positions."""
        raise NotImplementedError(f"field {self.name!r} is computed in a pass of its own")

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        """Like `from_logits`, for a field that sets `reads_hidden`: from the last hidden states that predict the N tokens."""
        raise NotImplementedError(f"field {self.name!r} reads no hidden states")


class PolicyLoss(Stage):
    """The policy-gradient loss, unreduced."""

    kind: ClassVar[str] = "policy_loss"
    home: ClassVar[str] = "vlrl.methods"
    zero_without_advantage: ClassVar[bool] = True  # False: has a gradient even where every advantage of a group is 0

    @abstractmethod
    def __call__(self, x: LossInputs) -> PerToken: ...


class TokenWeight(Stage):
    """A factor on the surrogate, (B, T) or (B, 1), without gradient."""

    kind: ClassVar[str] = "token_weight"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, x: LossInputs) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class LossTerm(Stage):
    """A further loss, added with a coefficient."""

    kind: ClassVar[str] = "loss_term"
    home: ClassVar[str] = "vlrl.methods"
    coef: float = 1.0

    @abstractmethod
    def __call__(self, x: LossInputs) -> PerToken: ...


@dataclass(frozen=True)
class Denominators:
    """Totals of one optimizer step over all micro-batches and ranks, so that any split gives the same gradient."""

    tokens: float
    sequences: float
    groups: float


class LossAggregation(Stage):
    """Tokens to a scalar: sum(weights * loss). The weights come from lengths and the totals of the whole step, never of a micro-batch."""

    kind: ClassVar[str] = "loss_aggregation"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def weights(self, x: LossInputs, totals: Denominators) -> Tensor:
        """(B, T), or (B, 1)."""


class Trainable(Stage):
    """What is trained: called with the policy before the optimizer is made; freezes, wraps, returns parameter groups."""

    kind: ClassVar[str] = "trainable"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, policy: Policy) -> list[dict[str, Any]]: ...


class Callback(Stage):
    """After a step: reference resets, EMA, evaluation, phase changes."""

    kind: ClassVar[str] = "callback"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]: ...


class Metric(Stage):
    """Numbers for the log and the report."""

    kind: ClassVar[str] = "metric"
    home: ClassVar[str] = "vlrl.methods"

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> dict[str, float]: ...


__all__ = [
    "STAGES",
    "AdvantageEstimator",
    "AuxTensor",
    "Callback",
    "Denominators",
    "Engine",
    "Environment",
    "GroupFilter",
    "LossAggregation",
    "LossTerm",
    "Metric",
    "PolicyLoss",
    "PromptSampler",
    "PromptTemplate",
    "ReplayBuffer",
    "Reward",
    "RewardShaping",
    "RolloutBudget",
    "RolloutStrategy",
    "SamplingPolicy",
    "Select",
    "Source",
    "Stage",
    "TokenCredit",
    "TokenWeight",
    "Trainable",
]

STAGES: dict[str, type[Stage]] = {
    stage.kind: stage
    for stage in (
        Source, Select, PromptSampler, PromptTemplate, SamplingPolicy, RolloutBudget, Engine, RolloutStrategy, Environment, Reward, RewardShaping, GroupFilter, ReplayBuffer, AdvantageEstimator, TokenCredit,
        AuxTensor, PolicyLoss, TokenWeight, LossTerm, LossAggregation, Trainable, Callback, Metric,
    )
}  # fmt: skip
