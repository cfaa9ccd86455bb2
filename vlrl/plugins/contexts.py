"""What plug-ins see of the run and of the policy: protocols that `vlrl.trainer.run.Run` and
`vlrl.policy.Policy` implement.

The attributes named like config slots hold the current phase's plug-ins of these slots (`vlrl/plugins/stages.py`). No
torch is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vlrl.plugins.capabilities import Capability
from vlrl.types import Completion, Group, Prompt, Rollout, Row, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


class PolicyModel(Protocol):
    """A policy as plug-ins see it: a model and its processor (`vlrl.policy.Policy`)."""

    family: Any
    device: Any
    version: int  # updates so far

    @property
    def model(self) -> Any:
        """The transformers model."""

    @property
    def tokenizer(self) -> Any:
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

    def encode(self, prompt: Prompt) -> Any:
        """The prompt's token ids and media features; its length is in tokens."""

    def encode_media(self, features: Sequence[Any]) -> Sequence[Any]:
        """The vision tower's output for the media of an encoded prompt."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion tokens, special tokens left out."""

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that is no prompt; special tokens in it become ordinary tokens of their
        characters."""

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, media as placeholders."""

    def spaces(self, prompt: Prompt) -> Sequence[Any]:
        """The CoordinateSpace of each image, then of each video."""

    def forward(self, batch: TokenBatch, aux_tensors: Sequence[Any] = ()) -> dict[str, Tensor]:
        """{"logp": (B, T), aux tensor: (B, T) or (B, T, K)}, temperature-scaled. Honours the autograd
        mode."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Around forwards of `family.hidden` and `family.logits`: matrix products in the policy's own
        type."""

    def with_model(self, model: Any) -> PolicyModel:
        """A view that runs another model of the same architecture."""

    def add_adapter(self, options: Mapping[str, Any], parts: tuple[str, ...], targets: str) -> None:
        """Put a LoRA adapter on the linear layers of `parts` whose names match `targets`, and freeze
        everything else."""

    @staticmethod
    def part_of(name: str) -> str:
        """The part of the model that a parameter belongs to: "vision", "projector" or "language"."""

    def keep_reference(self, renew: bool = False) -> None:
        """Copy the weights as they are now as the KL reference, unless there is one already (or `renew`)."""

    def reference(self) -> AbstractContextManager[PolicyModel]:
        """The policy with the reference's weights, for forward passes without gradient."""

    def reference_state(self) -> dict[str, Any]:
        """The reference's weights, for a restart."""

    def load_reference(self, state: Mapping[str, Any]) -> None:
        """Undo `reference_state`."""


class RunContext(Protocol):
    """A run as plug-ins see it (`vlrl.trainer.run.Run`): the current phase's slots, the policy, and what the
    trainer does for its plug-ins.

    `gather`, `gather_and_clear`, `sum_tensor`, `mean` and `accuracy` are collectives: every rank calls them,
    or none does.
    """

    config: Any
    settings: Any  # vlrl.config.settings.Settings of the current phase
    family: Any
    policy: Any  # a PolicyModel; None before the run is opened
    engine: Any
    optimizer: Any
    accelerator: Any
    objective: Any  # policy_loss, token_weights, loss_terms, loss_aggregation
    phases: Any  # of the whole run, in order
    phase_index: int
    seed: int
    step: int
    phase_step: int
    learning_rate: float
    output: Path
    history: dict[str, dict[str, Any]]  # a memory per row id that survives restarts; plain values
    extras: dict[str, Any]  # further trained modules and services, by name
    rows: dict[str, Sequence[Row]]  # training rows by source
    source_weights: dict[str, float]
    groups: list[Group]  # this rank's groups of the step just taken
    sampled_groups: Sequence[Group]
    answered_groups: Sequence[Group]
    trained_groups: Sequence[Group]
    stats: Any
    bad_rows: Any  # rows that could not be used
    recorder: Any  # vlrl.logging.recorder.Recorder; None before training starts
    activity: Any  # a vlrl.activity.observer.Activity while the run is watched, else None
    collected_ahead: dict[str, Any] | None  # batches for later steps (`vlrl/trainer/pipeline/pipeline.py`)
    cached_rows: dict[str, dict[str, Sequence[Row]]]
    prompt_sampler: Any
    prompt_template: Any
    sampling: Any
    rollout_budget: Any
    rollout: Any
    environment: Any
    rewards: Any  # slot name -> plug-in
    reward_shaping: Any  # slot name -> plug-in
    group_filters: Any  # slot name -> plug-in
    replay: Any
    advantage: Any
    token_credit: Any
    trainable: Any
    callbacks: Any  # slot name -> plug-in
    metrics: Any  # slot name -> plug-in
    aux_tensors: Any  # slot name -> plug-in

    @property
    def current(self) -> Any:
        """The current phase."""

    @property
    def phase(self) -> str:
        """Name of the current phase."""

    @property
    def group_size(self) -> int:
        """Rollouts per prompt."""

    @property
    def rank(self) -> int:
        """This process, of `ranks`."""

    @property
    def ranks(self) -> int:
        """Number of training processes."""

    @property
    def state_sharded(self) -> bool:
        """Whether weights or optimizer states are sharded over ranks."""

    @property
    def params_sharded(self) -> bool:
        """Whether the weights themselves are sharded over ranks (FSDP, ZeRO-3)."""

    @property
    def suites(self) -> Any:
        """Benchmark suites drawn with the run's engine: `check(options)`, `evaluate(options, run)`."""

    def use(self, index: int) -> None:
        """Make a phase's plug-ins the attributes of the run, without setting them up."""

    def has(self, capability: Capability) -> bool:
        """Whether a plug-in of the current phase provides a capability."""

    def outcome_slot(self, row: Row) -> str:
        """The reward slot that decides whether an answer to `row` is correct. Raises ConfigError where no
        reward can."""

    def make_rollout(self, completion: Completion) -> Rollout:
        """A finished completion as a rollout of its prompt."""

    def warn(self, message: str) -> None:
        """Write a warning to the console and to events.jsonl."""

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        """The input of `policy.forward`. Raises ValueError for an empty completion."""

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The groups in pieces of `micro_batch_tokens`, one `batch` each."""

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the rollout strategy is done: fills `rewards`, `reward` and `outcome`; drops
        rollouts on which a reward raised."""

    def episodes(self, counted: bool = True) -> Any:
        """A pool of episodes of the run's environment (`vlrl.trainer.step.episode_pool.RunEpisodes`). Leaving it
        closes them all.

        Without `counted` the run's statistics are left alone.
        """

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Plain values of all ranks: the first of each, then the second of each."""

    def gather_and_clear(self, values: list[Any]) -> list[Any]:
        """`gather` of a list that is emptied."""

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""

    def mean(self, total: float, count: float) -> float:
        """All ranks' totals over all ranks' counts; 0 where the count is 0."""
