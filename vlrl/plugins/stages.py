"""The stages of a training step: one abstract class per stage. A plug-in is a frozen dataclass derived from
one.

A plug-in's fields are its config, `__call__` is the method. What it learns is a `State`, which `state_class`
names and the run saves and restores. It acts at declared moments only, and sees no more than they
need (`vlrl/plugins/contexts.py`):

    check(phase)    before anything slow is loaded: refuse impossible combinations
    setup(run)      once per phase, when the policy is loaded; `self.run` afterwards
    its call        in its stage of the step
    end_step(run)   after each step, on all ranks
    metrics()       numbers for the log; pure
    finding(log)    after the run: what its paper found, said of this run

`needs` names the extra tensors a plug-in reads. `provides` and `requires` name capabilities and annotations
(`vlrl/plugins/capabilities.py`).

Shapes: B rollouts, T completion tokens, N scored tokens, V vocabulary, K numbers per token, H hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import CallbackContext, SamplingContext
from vlrl.plugins.episodes import EPISODE_END, Episode
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stage import Stage as Stage
from vlrl.plugins.state import State as State
from vlrl.plugins.state import StepCounts as StepCounts
from vlrl.plugins.state import transient as transient
from vlrl.plugins.text_scoring import ScoresTexts
from vlrl.plugins.views import PolicyView
from vlrl.types import (
    Completion,
    Denominators,
    FilterDecision,
    Group,
    LossInputs,
    Prompt,
    Request,
    Rollout,
    Row,
    Sampling,
    TokenBatch,
    UnreducedLoss,
)

if TYPE_CHECKING:
    from torch import Tensor

GroupScores = Sequence[float | Awaitable[float] | NoScore]
TOKEN_ADVANTAGES: Annotation[list] = Annotation(
    "token_advantages", list, hint="advantage: {name: gae}", doc="one advantage per token"
)


# --- data ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Source(Stage):
    """Where rows come from. `weight` is its share when several sources are mixed (0: as many rows as it
    has)."""

    kind: ClassVar[str] = "source"
    home: ClassVar[str] = "vlrl_data"
    weight: float = 0.0

    @property
    def own_rewards(self) -> Mapping[str, Mapping[str, Any]]:
        """Reward slots that score this source's rows, as under `rewards`. The config gains them; its own
        entry may change fields."""
        return {}

    @abstractmethod
    def __call__(self) -> Iterable[Row]: ...

    def look(self) -> str:
        """What the source reads, in a few words for a dry run. A source of files reads a few records, nothing
        is fetched. Raises ConfigError for a file or a column that does not exist."""
        return f"{self.name}, made here"


class Select(Stage):
    """Keeps, drops or reorders rows, once, before training."""

    kind: ClassVar[str] = "select"

    @abstractmethod
    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]: ...


class PromptSampler(Stage):
    """Draws the next rows. The draw is a function of the state alone: a restart continues with the same
    rows."""

    kind: ClassVar[str] = "prompt_sampler"

    @abstractmethod
    def __call__(self, n: int) -> list[Row]: ...


class PromptTemplate(Stage):
    """Row to prompt: chat messages, system prompt, answer format, hints."""

    kind: ClassVar[str] = "prompt_template"

    @abstractmethod
    def __call__(self, row: Row) -> Prompt: ...


# --- rollouts -----------------------------------------------------------------------------------------------


class SamplingPolicy(Stage):
    """The sampling parameters of a prompt's `attempt`-th completion."""

    kind: ClassVar[str] = "sampling_policy"

    @abstractmethod
    def __call__(self, prompt: Prompt, attempt: int) -> Sampling: ...


class RolloutBudget(Stage):
    """The number of rollouts of each prompt; the counts sum to `total`."""

    kind: ClassVar[str] = "rollout_budget"

    @abstractmethod
    def __call__(self, prompts: Sequence[Prompt], total: int) -> list[int]: ...


class Engine(Stage):
    """Samples completions. `version` counts the policy updates it has received."""

    kind: ClassVar[str] = "engine"
    home: ClassVar[str] = "vlrl.engine"
    remote: ClassVar[bool] = False  # True: a request is a call to another machine, which can fail alone

    @property
    def own_weights(self) -> bool:
        """Whether it can sample while the trainer trains."""
        return False

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> Iterable[Completion]:
        """Completions as they finish, in any order; every request yields exactly its `n`."""

    @abstractmethod
    def sync(self, policy: PolicyView) -> None:
        """Load the policy's weights."""

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of `ids` after `prompt` at temperature 1."""
        raise NotImplementedError(f"engine {self.name!r} cannot score; use engine 'hf'")

    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        """`score` of many pairs; engines that can batch them override it."""
        return [self.score(prompt, ids) for prompt, ids in pairs]

    def uncounted(self) -> AbstractContextManager[None]:
        """What is sampled inside, such as held-out answers, is in no step's metrics."""
        return nullcontext()

    def release(self) -> None:
        """The conversations of the last calls are over: drop what was kept for their next turns."""

    def close(self) -> None:
        """Free the engine's resources."""


class RolloutStrategy(Stage):
    """Prompts to groups of rollouts, through an engine."""

    kind: ClassVar[str] = "rollout_strategy"
    samples: ClassVar[bool] = True  # False: makes its rollouts without an engine
    needs_target: ClassVar[bool] = (
        True  # of one that does not sample: False where its demonstrations are not the rows' `target`
    )

    @abstractmethod
    def __call__(
        self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext
    ) -> list[Group]: ...

    def play(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling], run: SamplingContext
    ) -> list[list[Rollout] | str] | None:
        """One attempt per prompt for held-out evaluation: its rollouts in order, or why it failed. None where
        an attempt is a single completion."""
        return None


@dataclass(frozen=True, kw_only=True)
class Environment(Stage):
    """What the policy acts on over several turns: tools, a game, a simulated user. One `Episode` per rollout
    (protocol: `vlrl/plugins/episodes.py`).

    `concurrency` is the number of resets and steps that run at once. Deadlines in seconds: `call_seconds` of
    one tool call, `turn_seconds` of a reset or a step, `episode_seconds` of all of them together; past the
    last two an episode ends as an error. `retries` is how often a failed reset (on a new episode) and a call
    that raised `TryAgain` are repeated. `record` episodes of each sampling are written to
    `trajectories.jsonl`.
    """

    kind: ClassVar[str] = "environment"
    home: ClassVar[str] = "vlrl.environments,vlrl.methods"
    stops: ClassVar[tuple[str, ...]] = ()  # strings that end the policy's turn
    concurrency: int = 16
    call_seconds: float = 30.0
    turn_seconds: float = 60.0
    episode_seconds: float = 600.0
    retries: int = 1
    record: int = 0
    requires = (EPISODE_END,)  # of a rollout strategy that plays episodes

    @abstractmethod
    def episode(self) -> Episode:
        """A new episode, not yet reset; cheap, and raises nothing."""

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Schemas of its tools, {"type": "function", "function": {"name", "description", "parameters"}}, for
        the chat template."""
        return ()

    def close(self) -> None:
        """Free what its episodes share, at the end of the run."""


# --- rewards and advantages ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reward(ScoresTexts, Stage):
    """Scores a rollout. Raises for a broken gold answer or verifier, never for a bad response: that gets a
    score. `score(text, gold)` needs no run.

    `weight` is its factor in the total (0: only logged). `tasks` limits it to rows of these tasks; empty
    means all. `correct_at` is the score from which on an answer is correct (`correct`), where this reward is
    the outcome of a row (`Rollout.correct`).
    """

    kind: ClassVar[str] = "reward"
    home: ClassVar[str] = "vlrl_rewards"
    reads_answer: ClassVar[bool] = (
        True  # False: scores form or length only; such a reward needs no gold answer and is never the outcome
    )
    needs_gold: ClassVar[bool] = True  # False: judges without the row's answer, as an environment does
    weight: float = 1.0
    tasks: tuple[str, ...] = ()
    correct_at: float = 1.0

    @property
    def inner_rewards(self) -> tuple[Reward, ...]:
        """The rewards that it holds: plug-ins of the run, like itself."""
        return ()

    @property
    def form_marks(self) -> tuple[str, ...]:
        """Strings that a response must write to be paid for its form, so that the prompt must ask for them:
        ("<answer>",)."""
        return ()

    @abstractmethod
    def __call__(self, rollout: Rollout) -> float | Awaitable[float]: ...

    def prepare(self, groups: Sequence[Group]) -> None:
        """Called with all groups of a batch before the first of them is scored: a reward that asks a model
        asks about all of them at once."""
        for inner in self.inner_rewards:
            inner.prepare(groups)

    def score_group(self, group: Group) -> GroupScores | Awaitable[GroupScores]:
        """The scores of a group's rollouts; a reward that compares siblings overrides it. `NoScore` in place
        of a score: this rollout alone has none, and leaves the group."""
        return [self(rollout) for rollout in group]

    def correct(self, rollout: Rollout, score: float) -> bool:
        """Whether a rollout with this score is correct: it reaches `correct_at`. A reward whose score does
        not tell (a rank) overrides it."""
        return score >= self.correct_at - 1e-9


class RewardShaping(Stage):
    """New total rewards of a group. Shapings form a chain: each reads the `rollout.reward` that the one
    before it wrote."""

    kind: ClassVar[str] = "reward_shaping"
    punishes_length: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, group: Group) -> list[float]: ...


class GroupFilter(Stage):
    """Whether a scored group is trained on. Dropped groups are counted by reason and replaced."""

    kind: ClassVar[str] = "group_filter"

    @abstractmethod
    def __call__(self, group: Group) -> FilterDecision: ...


class ReplayBuffer(Stage):
    """Adds stored or expert rollouts to the fresh groups, and may store these."""

    kind: ClassVar[str] = "replay_buffer"

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> list[Group]: ...


class AdvantageEstimator(Stage):
    """One advantage per rollout; an estimator that has one per token also writes, and provides,
    TOKEN_ADVANTAGES.

    Sees the groups of all ranks; those of other ranks come without media and without signals of many numbers
    per token.
    """

    kind: ClassVar[str] = "advantage_estimator"
    trains: ClassVar[bool] = True  # False: advantage 0 on purpose, so that the model stays as it is

    def prepare(self, groups: Sequence[Group]) -> None:
        """Called with this rank's own groups before they are sent to the other ranks: write what does not
        travel into annotations."""

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> list[list[float]]: ...


class TokenCredit(Stage):
    """Spreads a rollout's advantage over its tokens: one list per rollout, as long as its ids."""

    kind: ClassVar[str] = "token_credit"

    @abstractmethod
    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]: ...


# --- loss ---------------------------------------------------------------------------------------------------


class AuxTensor(Stage):
    """An extra tensor, computed only if some plug-in `needs` its name.

    A tensor that is a function of the policy's own logits sets `in_forward` and overrides `from_logits`: it
    is evaluated chunk by chunk inside the training forward. Any other one overrides `__call__`, which runs
    without gradient before it.
    """

    kind: ClassVar[str] = "aux_tensor"
    in_forward: ClassVar[bool] = False
    reads_hidden: ClassVar[bool] = False  # with in_forward: overrides `from_hidden` instead of `from_logits`
    reads_routing: ClassVar[bool] = False  # with in_forward: is `Routing.balance_2` of its micro-batch
    no_grad: ClassVar[bool] = False  # with in_forward: True if the values carry no gradient
    at_start: ClassVar[bool] = False  # True: with the weights before the step's first update

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        """(B, T), or (B, T, K)."""
        raise NotImplementedError(f"aux tensor {self.name!r} is computed in the training forward")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        """(N,) or (N, K) from temperature-scaled float32 logits of N completion positions."""
        raise NotImplementedError(f"aux tensor {self.name!r} is computed in a pass of its own")

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        """`from_logits` for a tensor that sets `reads_hidden`: from the last hidden states that predict the N
        tokens."""
        raise NotImplementedError(f"aux tensor {self.name!r} reads no hidden states")


class PolicyLoss(Stage):
    """The policy-gradient loss per token, not yet aggregated."""

    kind: ClassVar[str] = "policy_loss"
    zero_without_advantage: ClassVar[bool] = (
        True  # False: has a gradient even where every advantage of a group is 0
    )
    is_plain: ClassVar[bool] = (
        False  # True: meant to have the gradient of the plain policy gradient, -A d log pi, also off-policy
    )

    @abstractmethod
    def __call__(self, x: LossInputs) -> UnreducedLoss: ...


class TokenWeight(Stage):
    """A factor on the policy loss, (B, T) or (B, 1), without gradient."""

    kind: ClassVar[str] = "token_weight"
    corrects_engine: ClassVar[bool] = False  # True: the distance of engine and trainer

    def prepare(self, groups: Sequence[Group]) -> None:
        """As `LossTerm.prepare`; with `needs` "old_logp" the groups have that signal."""

    @abstractmethod
    def __call__(self, x: LossInputs) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class LossTerm(Stage):
    """A further loss, added with the coefficient `coef`."""

    kind: ClassVar[str] = "loss_term"
    coef: float = 1.0

    def prepare(self, groups: Sequence[Group]) -> None:
        """Called on all ranks with this rank's groups before the first update of a step."""

    @abstractmethod
    def __call__(self, x: LossInputs) -> UnreducedLoss: ...


class LossAggregation(Stage):
    """Tokens to a scalar: sum(weights * loss). The weights depend on lengths and on the counts of the whole
    step, never on the micro-batch."""

    kind: ClassVar[str] = "loss_aggregation"

    @abstractmethod
    def weights(self, x: LossInputs, loss_denominators: Denominators) -> Tensor:
        """(B, T), or (B, 1)."""


# --- run ----------------------------------------------------------------------------------------------------


class Trainable(Stage):
    """What is trained: called with the policy before the optimizer is made; freezes, wraps, returns parameter
    groups."""

    kind: ClassVar[str] = "trainable"

    @abstractmethod
    def __call__(self, policy: PolicyView) -> list[dict[str, Any]]: ...


class Callback(Stage):
    """Acts after a step on the groups of all ranks: reference resets, averages, evaluation, critics. Returns
    numbers as `metrics` does."""

    kind: ClassVar[str] = "callback"
    home: ClassVar[str] = "vlrl.methods,vlrl.eval"

    @abstractmethod
    def __call__(
        self, run: CallbackContext, groups: Sequence[Group]
    ) -> Mapping[str, float | tuple[float, float]]: ...


class Metric(Stage):
    """Numbers for the log and the report, from the groups of all ranks."""

    kind: ClassVar[str] = "metric"

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> dict[str, float]: ...


STAGES: dict[str, type[Stage]] = {
    stage.kind: stage
    for stage in (
        *(Source, Select, PromptSampler, PromptTemplate, SamplingPolicy, RolloutBudget, Engine),
        *(RolloutStrategy, Environment),
        *(Reward, RewardShaping, GroupFilter, ReplayBuffer, AdvantageEstimator, TokenCredit),
        *(AuxTensor, PolicyLoss, TokenWeight, LossTerm, LossAggregation, Trainable, Callback, Metric),
    )
}
