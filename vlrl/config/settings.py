"""The numbers of a run that belong to no plug-in. Their names are the top-level keys of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from vlrl.plugins.registry import ConfigError, expanded, make

# The largest value of a count: beyond it, only a slip of the hand is meant.
_MOST = {
    "steps": 10**8, "group_size": 65_536, "prompts_per_step": 10**6, "num_minibatches": 10**6,
    "ppo_epochs": 1000,
    "micro_batch_tokens": 2**30, "max_prompt_tokens": 2**30, "max_refill_rounds": 10**6,
    "sequence_parallel": 1024,
}  # fmt: skip


@dataclass(frozen=True)
class Optimizer:
    """AdamW and its schedule. `warmup` counts optimizer steps; below 1 it is a share of all of them, as the
    ratios of OpenRLHF, verl and transformers, in which the first update of a warm-up has a rate of 0; here it
    has `lr` / `warmup`. `max_grad_norm` 0 switches clipping off."""

    kind: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "sgd"] = "adamw"
    lr: float = 1e-6
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    min_lr_share: float = 0.0
    warmup: float = 0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "eps", "warmup", "max_grad_norm", "min_lr_share"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 or more")
        if self.lr > 1000 or self.min_lr_share > 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"lr={self.lr}, min_lr_share={self.min_lr_share}, betas={list(self.betas)}; allowed: lr up "
                "to 1000, min_lr_share up to 1, "
                "betas from 0 to below 1"
            )
        if self.warmup > 1 and self.warmup % 1:
            raise ValueError(
                f"warmup is {self.warmup}; allowed: a whole number of optimizer steps, or a share of them "
                "below 1"
            )

    def warmup_steps(self, steps: int) -> int:
        """The optimizer steps of the warm-up, of `steps` in all: a share of them is rounded up."""
        return math.ceil(self.warmup * steps) if self.warmup < 1 else int(self.warmup)


@dataclass(frozen=True)
class Watch:
    """What is kept of a run: every n-th step's rollouts, the last `keep` checkpoints (0: all), extra
    `trackers`, which get the first `tracker_rollouts` rollouts of each step whose rollouts are kept.

    `stop_seconds` bounds the time from a signal to the end of the process: the step in progress and its
    checkpoint. `rank_timeout` is the number of seconds after which a silent rank ends all ranks.
    `heldout_answers` is the number of held-out answers per task that the summary and the report show, before
    and after training. The activity of every slot is watched for the first `activity_steps` of each phase (0:
    never); what did nothing until then is warned of.
    """

    rollouts_every: int = 1
    checkpoint_every: int = 50
    keep: int = 2
    trackers: tuple[str, ...] = ()
    tracker_rollouts: int = 8
    live: bool = True
    entropy: bool = True
    heldout_every: int = 0
    heldout_answers: int = 0
    activity_steps: int = 5
    stop_seconds: float = 300.0
    rank_timeout: float = 45.0

    def __post_init__(self) -> None:
        for name in ("stop_seconds", "rank_timeout"):
            if not 1 <= getattr(self, name) <= 86_400:
                raise ValueError(f"{name} is a number of seconds from 1 to 86400, got {getattr(self, name)}")
        counts = (
            "rollouts_every",
            "checkpoint_every",
            "keep",
            "tracker_rollouts",
            "heldout_every",
            "heldout_answers",
            "activity_steps",
        )
        if min(getattr(self, name) for name in counts) < 0:
            raise ValueError(f"{', '.join(counts[:-1])} and {counts[-1]} must not be negative")


@dataclass(frozen=True)
class Settings:
    """Scalars of one phase.

    `prompts_per_step` counts over all ranks; each step trains on that many groups of `group_size` rollouts in
    `num_minibatches` optimizer steps, `ppo_epochs` times over. `micro_batch_tokens` bounds a micro-batch
    (prompt once per group plus completions). `sequence_parallel` ranks train on the same rows, each on a
    slice of every row; it divides the number of ranks. Log-probs and entropies of the loss are of
    softmax(logits / `logp_temperature`); "sampling": what each token was sampled at.
    `error_limit` is the share of rollouts whose rewards may raise before the run stops, `row_error_limit` the
    share of drawn rows that may be unusable (at least 10 of them); `max_refill_rounds` bounds the refilling
    after group filters.
    """

    steps: int = 100
    group_size: int = 8
    prompts_per_step: int = 4
    num_minibatches: int = 1
    ppo_epochs: int = 1
    logp_temperature: Literal["sampling"] | float = "sampling"
    micro_batch_tokens: int = 8192
    sequence_parallel: int = 1
    max_prompt_tokens: int = 4096
    max_refill_rounds: int = 10
    error_limit: float = 0.1
    row_error_limit: float = 0.1
    loop: Literal["synchronous", "one_step_off", "asynchronous"] = "synchronous"
    loop_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer = field(default_factory=Optimizer)
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 1 to {most}")
        if self.prompts_per_step % self.num_minibatches:
            near = sorted(
                (d for d in range(1, self.prompts_per_step + 1) if self.prompts_per_step % d == 0),
                key=lambda d: abs(d - self.num_minibatches),
            )
            raise ValueError(
                f"num_minibatches={self.num_minibatches} does not divide "
                f"prompts_per_step={self.prompts_per_step}; use one of {sorted(near[:6])}"
            )
        if self.logp_temperature != "sampling" and not 0 < self.logp_temperature <= 1000:
            raise ValueError(
                f"logp_temperature is {self.logp_temperature}; allowed: sampling, or a number above 0 up to "
                "1000"
            )
        for name in ("error_limit", "row_error_limit"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share between 0 and 1, got {getattr(self, name)}")


def settings_of(tree: Mapping[str, Any], where: str = "") -> Settings:
    """The settings in a phase's tree. Raises ConfigError."""
    values = {key: tree[key] for key in Settings.__dataclass_fields__ if key in tree}
    try:
        return make(Settings, expanded(values, where or "config"), where or "config")
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if where else text.removeprefix("config: ").removeprefix("config.")) from None


_EXAMPLES = {"optimizer": "lr: 1.0e-6", "watch": "keep: 2", "loop_options": "staleness: 2"}


def nested_fields() -> list[str]:
    """Dotted names of the fields of the nested settings: "optimizer.lr", "watch.keep" ..."""
    return [
        f"{name}.{inner}"
        for name, cls in (("optimizer", Optimizer), ("watch", Watch))
        for inner in cls.__dataclass_fields__
    ]


def check_value(key: str, value: Any) -> None:
    """Check one setting by itself: its type, its range, the fields of a nested one. Raises ConfigError."""
    values = {key: value}
    if key in ("optimizer", "watch", "loop_options") and not isinstance(value, Mapping):
        kinds = get_args(get_type_hints(Optimizer)["kind"])
        hint = (
            f"; the kind of optimizer is optimizer.kind: {', '.join(kinds)}"
            if key == "optimizer" and isinstance(value, str)
            else ""
        )
        raise ConfigError(
            f"{key}: expected a mapping, like `{key}: {{{_EXAMPLES[key]}}}`, got {str(value)[:80]!r}{hint}"
        )
    if key == "num_minibatches":
        values["prompts_per_step"] = (
            # any number divides itself; whether it divides the phase's own is checked when the phase is built
            value
        )
    settings_of(values)
