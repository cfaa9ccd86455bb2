"""Other plug-ins, the policy and the engine as a plug-in sees them: protocols for `contexts.py`, without
torch."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from vlrl.plugins.capabilities import Capability
from vlrl.types import Completion, CoordinateSpace, Group, Prompt, Request, Rollout, Row, Sampling, TokenBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel


T = TypeVar("T")


class PluginView(Protocol):
    """Another slot's plug-in; `isinstance` tells what else it has."""

    @property
    def name(self) -> str:
        """The name that it is registered under."""

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
    def reads_routing(self) -> bool:
        """True: the tensor is the balance of the experts' load, and nothing is called."""

    @property
    def no_grad(self) -> bool: ...
    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor: ...
    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor: ...


@runtime_checkable
class TokenValuesView(AuxTensorView, Protocol):
    """A tensor that reads numbers of each token beside the logits: `from_values` is called, not
    `from_logits`."""

    def token_values(self, batch: TokenBatch) -> Tensor:
        """(B, T, K) numbers of the completion tokens, made before the forward pass, without gradient."""

    def from_values(self, logits_NV: Tensor, ids_N: Tensor, values_NK: Tensor) -> Tensor:
        """(N,) from temperature-scaled float32 logits of N tokens and their numbers."""


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

    @property
    def dtype(self) -> str:
        """The type of its matrix products."""


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
    def logp_temperature(self) -> Literal["sampling"] | float: ...
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
    def stop_ids(self) -> Sequence[int]:
        """Tokens that end a completion."""

    @property
    def forbidden_ids(self) -> Sequence[int]:
        """Ids with probability 0: placeholders of media, and rows of the output layer beyond the
        tokenizer."""

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter (PEFT) is on the model."""

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

    def load_other(self, model: str, seed: int, spec: Mapping[str, object] | None = None) -> PolicyView:
        """Another policy on the same device: of the same family with the weights of `model`, or as `spec`
        says, a config as in slot `policy`."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V): the logits that tokens are drawn from."""

    def advance(self) -> None:
        """Count an update of the weights."""

    def add_adapter(self, options: Mapping[str, object], parts: tuple[str, ...], targets: str) -> None:
        """Put a LoRA adapter on the linear layers of `parts` that match `targets`; freeze all else."""

    @staticmethod
    def part_of(name: str) -> str:
        """The part of the model that a parameter belongs to: "vision", "projector" or "language"."""

    def read_routers(self, what: str) -> None:
        """Let the routers of a mixture be read in forward passes. Raises ConfigError, about the setting
        `what`, for a model without them."""

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

    def uncounted(self) -> AbstractContextManager[None]:
        """For work that is in no step's metrics."""

    def release(self) -> None:
        """The conversations of the last calls are over."""
