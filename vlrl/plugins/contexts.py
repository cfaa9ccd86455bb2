"""What a plug-in sees at each moment, as narrow protocols. No torch is imported here.

    check(run: PhaseContext)             the plan of its phase: settings, family, the other slots
    setup(run: StageContext)             + the loaded policy, rows, memory, ranks; kept as `self.run`
    strategy(..., run: SamplingContext)  + engine, templates, scoring, episodes
    end_step(run: StepContext)           + the step's groups
    callback(run: CallbackContext)       all of these, the optimizer, batches, held-out accuracy

A phase of the plan (`vlrl/trainer/phase.py`), the session (`vlrl/trainer/session.py`) and the views of one
step (`vlrl/trainer/step/views.py`) implement them. What can be changed has a method; attributes are read.

`gather`, `gather_and_clear`, `sum_tensor`, `mean` and `accuracy` are collectives: every rank calls them, or
none does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from vlrl.plugins.capabilities import Capability
from vlrl.types import Completion, CoordinateSpace, Group, Prompt, Request, Rollout, Row, Sampling, TokenBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from vlrl.plugins.episode_pool import EpisodePool

T = TypeVar("T")


# --- other plug-ins, as one sees them -----------------------------------------------------------------------


class PluginView(Protocol):
    """Another slot's plug-in; `isinstance` tells what else it has."""

    @property
    def name(self) -> str:
        """The name that it is registered under."""

    @property
    def needs(self) -> Sequence[str]:
        """Names of the extra tensors that it reads."""

    @property
    def provides(self) -> Sequence[Capability]:
        """Capabilities that it has."""

    @property
    def requires(self) -> Sequence[Capability]:
        """Capabilities that it wants of others."""

    @property
    def state(self) -> object:
        """Its state."""


class RewardView(PluginView, Protocol):
    """A reward, as other plug-ins see it."""

    @property
    def reads_answer(self) -> bool:
        """Whether it reads the answer; False where it scores form or length only."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that it scores; () for all."""

    @property
    def weight(self) -> float:
        """Its factor in the total."""

    @property
    def correct_at(self) -> float:
        """The score from which on an answer is correct."""

    def correct(self, rollout: Rollout, score: float) -> bool:
        """Whether a rollout with this score is correct."""

    def __call__(self, rollout: Rollout) -> float | Awaitable[float]: ...


class AdvantageView(PluginView, Protocol):
    """An advantage estimator; `trains` is False where every advantage is 0 on purpose."""

    @property
    def trains(self) -> bool: ...

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]: ...


class StrategyView(PluginView, Protocol):
    """A rollout strategy; `samples` is False where it makes its rollouts without an engine."""

    @property
    def samples(self) -> bool: ...


class ShapingView(PluginView, Protocol):
    """A reward shaping."""

    @property
    def punishes_length(self) -> bool: ...


class TermView(PluginView, Protocol):
    """A loss term."""

    @property
    def coef(self) -> float:
        """Its coefficient."""


class ObjectiveView(Protocol):
    """The loss of the phase."""

    @property
    def policy_loss(self) -> PluginView: ...
    @property
    def loss_aggregation(self) -> PluginView: ...
    @property
    def token_weights(self) -> Mapping[str, PluginView]: ...
    @property
    def loss_terms(self) -> Mapping[str, TermView]: ...


class AuxTensorView(Protocol):
    """A tensor that is evaluated inside a forward pass (`vlrl.plugins.stages.AuxTensor`)."""

    @property
    def name(self) -> str: ...
    @property
    def reads_hidden(self) -> bool:
        """True: `from_hidden` is called, else `from_logits`."""

    @property
    def no_grad(self) -> bool: ...
    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor: ...
    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor: ...


class EnvironmentView(PluginView, Protocol):
    """An environment, as rollout strategies and templates see it."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end the policy's turn."""

    def tools(self) -> Sequence[Mapping[str, object]]:
        """Schemas of its tools, for the chat template."""


class SamplingView(PluginView, Protocol):
    """The sampling policy."""

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling: ...


class TemplateView(PluginView, Protocol):
    """The prompt template."""

    def __call__(self, row: Row) -> Prompt: ...


class FamilyView(Protocol):
    """The kind of model that the policy is."""

    @property
    def name(self) -> str: ...
    @property
    def is_multimodal(self) -> bool:
        """Whether it has a vision tower."""

    @property
    def model(self) -> str:
        """Folder or hub id of its weights; "" for a tiny one made at random."""


class OptimizerView(Protocol):
    """The optimizer's numbers."""

    @property
    def kind(self) -> str: ...
    @property
    def lr(self) -> float: ...


class SettingsView(Protocol):
    """The numbers of the phase that plug-ins read (`vlrl.config.settings.Settings`)."""

    @property
    def steps(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def prompts_per_step(self) -> int: ...
    @property
    def num_minibatches(self) -> int: ...
    @property
    def ppo_epochs(self) -> int: ...
    @property
    def optimizer(self) -> OptimizerView: ...
    @property
    def max_prompt_tokens(self) -> int: ...
    @property
    def loop(self) -> Literal["synchronous", "one_step_off", "asynchronous"]: ...


# --- policy and engine --------------------------------------------------------------------------------------


class EncodedView(Protocol):
    """A prompt as the model reads it."""

    @property
    def ids(self) -> list[int]:
        """Token ids up to the first completion token."""

    def __len__(self) -> int: ...


class TokenizerView(Protocol):
    """What plug-ins use of a transformers tokenizer."""

    @property
    def eos_token_id(self) -> int: ...
    def __len__(self) -> int: ...
    @property
    def pad_token_id(self) -> int: ...
    @property
    def all_special_ids(self) -> list[int]: ...
    @property
    def all_special_tokens(self) -> list[str]: ...
    def get_vocab(self) -> dict[str, int]: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


class PolicyView(Protocol):
    """A policy as plug-ins see it: a model and its processor (`vlrl.policy.Policy`)."""

    @property
    def version(self) -> int:
        """Updates so far."""

    @property
    def family(self) -> FamilyView:
        """The kind of model."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def model(self) -> PreTrainedModel:
        """The transformers model."""

    @property
    def tokenizer(self) -> TokenizerView:
        """The processor's tokenizer."""

    @property
    def pad_id(self) -> int:
        """The padding token's id."""

    @property
    def forbidden_ids(self) -> Sequence[int]:
        """Ids with probability 0: placeholders of media, and rows of the output layer beyond the
        tokenizer."""

    @property
    def has_dropout(self) -> bool:
        """Whether a forward pass with gradient drops activations at random."""

    def encode(self, prompt: Prompt) -> EncodedView:
        """The prompt's token ids and media features; its length is in tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion tokens, special tokens left out."""

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that is no prompt; special tokens in it become tokens of their characters."""

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, media as placeholders."""

    def spaces(self, prompt: Prompt) -> Sequence[CoordinateSpace]:
        """The coordinate space of each image, then of each video."""

    def forward(self, batch: TokenBatch, aux_tensors: Sequence[AuxTensorView] = ()) -> dict[str, Tensor]:
        """{"logp": (B, T), aux tensor: (B, T) or (B, T, K)}, temperature-scaled. Honours the autograd
        mode."""

    def gather_params(self) -> AbstractContextManager[object]:
        """Inside, all weights are on every rank. A collective if weights are sharded."""

    def autocast(self) -> AbstractContextManager[object]:
        """Around forwards: matrix products in the policy's own type."""

    def with_model(self, model: torch.nn.Module) -> PolicyView:
        """A view that runs another model of the same architecture."""

    def load_other(self, model: str, seed: int) -> PolicyView:
        """Another policy of the same family and on the same device, with the weights of `model`."""

    def advance(self) -> None:
        """Count an update of the weights."""

    def add_adapter(self, options: Mapping[str, object], parts: tuple[str, ...], targets: str) -> None:
        """Put a LoRA adapter on the linear layers of `parts` that match `targets`; freeze all else."""

    @staticmethod
    def part_of(name: str) -> str:
        """The part of the model that a parameter belongs to: "vision", "projector" or "language"."""

    def keep_reference(self, renew: bool = False) -> None:
        """Copy the weights as they are now as the KL reference, unless there is one (or `renew`)."""

    def reference(self) -> AbstractContextManager[PolicyView]:
        """The policy with the reference's weights, for forward passes without gradient."""

    def reference_state(self) -> dict[str, dict]:
        """The reference's weights, for a restart."""

    def load_reference(self, state: Mapping[str, dict]) -> None:
        """Undo `reference_state`."""


class EngineView(Protocol):
    """What samples completions."""

    @property
    def name(self) -> str: ...

    def generate(self, requests: Sequence[Request]) -> Iterable[Completion]:
        """Completions as they finish; every request yields exactly its `n`."""

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of `ids` after `prompt` at temperature 1."""

    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        """`score` of many pairs."""

    def sync(self, policy: PolicyView) -> None:
        """Load the policy's weights."""

    def release(self) -> None:
        """The conversations of the last calls are over."""


# --- the moments --------------------------------------------------------------------------------------------


class PhaseContext(Protocol):
    """A phase of the plan, as `check` sees it. The attributes named like slots hold their plug-ins."""

    @property
    def seed(self) -> int: ...
    @property
    def output(self) -> Path:
        """The run's folder."""

    @property
    def phase(self) -> str:
        """The phase's name."""

    @property
    def settings(self) -> SettingsView: ...
    @property
    def group_size(self) -> int:
        """Rollouts per prompt."""

    @property
    def family(self) -> FamilyView: ...
    @property
    def has_heldout(self) -> bool:
        """Whether the phase has held-out rows."""

    @property
    def sampling(self) -> SamplingView: ...
    @property
    def prompt_template(self) -> TemplateView: ...
    @property
    def rollout(self) -> StrategyView: ...
    @property
    def prompt_sampler(self) -> Callable[[int], Sequence[Row]]: ...
    @property
    def environment(self) -> EnvironmentView | None: ...
    @property
    def rewards(self) -> Mapping[str, RewardView]: ...
    @property
    def reward_shaping(self) -> Mapping[str, ShapingView]: ...
    @property
    def advantage(self) -> AdvantageView: ...
    @property
    def token_credit(self) -> PluginView: ...
    @property
    def objective(self) -> ObjectiveView: ...
    @property
    def aux_tensors(self) -> Mapping[str, PluginView]:
        """The extra tensors that plug-ins need, by name."""

    @property
    def trainable(self) -> PluginView: ...

    def has(self, capability: Capability) -> bool:
        """Whether a plug-in of the phase provides a capability."""

    def is_provided_anywhere(self, capability: Capability) -> bool:
        """Whether a plug-in of any phase of the run provides it."""

    def outcome_slot(self, row: Row) -> str:
        """The reward slot that decides whether an answer to `row` is correct. Raises ConfigError where no
        reward can."""


class StageContext(PhaseContext, Protocol):
    """The session, as every plug-in has it after `setup` (`self.run`)."""

    @property
    def step(self) -> int:
        """The step in progress, counted over all phases."""

    @property
    def phase_step(self) -> int:
        """Steps of the phase that are done."""

    @property
    def policy(self) -> PolicyView: ...
    @property
    def engine(self) -> EngineView: ...
    @property
    def rows(self) -> Mapping[str, Sequence[Row]]:
        """Training rows by source."""

    @property
    def source_weights(self) -> Mapping[str, float]: ...
    @property
    def history(self) -> dict[str, dict]:
        """A memory per row id that survives restarts; its values are plain (JSON)."""

    @property
    def rank(self) -> int:
        """This process, of `ranks`."""

    @property
    def ranks(self) -> int: ...
    @property
    def state_sharded(self) -> bool:
        """Whether weights or optimizer states are sharded over ranks."""

    @property
    def params_sharded(self) -> bool:
        """Whether the weights themselves are (FSDP, ZeRO-3)."""

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """What several plug-ins of the run use under a name (a critic): made at the first call."""

    def warn(self, message: str) -> None:
        """Write a warning to the console and to events.jsonl."""

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        """The input of `policy.forward`. Raises ValueError for an empty completion."""

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The groups in pieces of `micro_batch_tokens`, one `batch` each."""

    def make_rollout(self, completion: Completion) -> Rollout:
        """A finished completion as a rollout of its prompt."""

    def gather(self, values: Sequence[T]) -> list[T]:
        """Plain values of all ranks: the first of each, then the second of each."""

    def gather_and_clear(self, values: list[T]) -> list[T]:
        """`gather` of a list that is emptied."""

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""

    def mean(self, total: float, count: float) -> float:
        """All ranks' totals over all ranks' counts; 0 where the count is 0."""


class SamplingContext(StageContext, Protocol):
    """The collection of one step, as a rollout strategy sees it."""

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the strategy is done: fills `rewards`, `reward` and `outcome`; drops rollouts on
        which a reward raised."""

    def episodes(self, counted: bool = True) -> EpisodePool:
        """A pool of episodes of the environment. Leaving it closes them all. Without `counted` the step's
        counters are left alone."""

    def count(self, values: Mapping[str, float]) -> None:
        """Add to the step's counters, which are summed over ranks for the log."""

    def row_copy(self, row: Row) -> tuple[int, ...]:
        """(rank,) where another rank drew the same row first in this step, else (): part of a random stream's
        address."""


class StepContext(StageContext, Protocol):
    """A step that has learned, as `end_step` sees it. Groups of other ranks come without media."""

    @property
    def groups(self) -> Sequence[Group]:
        """This rank's groups that were trained on."""

    @property
    def sampled_groups(self) -> Sequence[Group]:
        """All ranks' groups, before filters."""

    @property
    def answered_groups(self) -> Sequence[Group]:
        """The same with the policy's own rollouts alone."""

    @property
    def trained_groups(self) -> Sequence[Group]:
        """All ranks' groups that were trained on."""


class CallbackContext(SamplingContext, StepContext, Protocol):
    """A step that has learned, as a callback sees it."""

    @property
    def learning_rate(self) -> float:
        """Of the last optimizer step."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def event(self, kind: str, values: Mapping[str, object]) -> None:
        """Write a line of events.jsonl."""

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""
