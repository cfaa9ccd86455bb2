"""TRL's `GRPOConfig` as settings of a run, and what its names are here. TRL itself is not imported: the
object is read by its fields.

TRL counts completions (per_device_train_batch_size x gradient_accumulation_steps make an optimizer step), a
run counts prompts: prompts_per_step = completions / num_generations.
Source: huggingface/trl v1.16, trl/trainer/grpo_config.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from vlrl.plugins.registry import ConfigError

BASE = "base/trainers/trl_1_9"  # what its defaults mean here

_PLAIN = {  # GRPOConfig's field -> setting
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "adam_epsilon": "optimizer.eps",
    "max_grad_norm": "optimizer.max_grad_norm",
    "warmup_steps": "optimizer.warmup",
    "lr_scheduler_type": "optimizer.schedule",
    "num_generations": "group_size",
    "num_iterations": "ppo_epochs",
    "max_completion_length": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "min_p": "sampling.min_p",
    "epsilon": "policy_loss.low",
    "output_dir": "output",
    "seed": "seed",
}
# what a config or an argument that has a name of TRL's is called here
TRL_NAMES = {
    **{name: key for name, key in _PLAIN.items() if name != "seed"},  # which is the same here
    "warmup_ratio": "optimizer.warmup",
    "max_steps": "steps",
    "per_device_train_batch_size": "prompts_per_step (TRL counts completions: divide by num_generations)",
    "gradient_accumulation_steps": "a factor of prompts_per_step",
    "max_prompt_length": "max_prompt_tokens",
    "beta": "loss_terms.kl.coef (preset grpo_kl)",
    "epsilon_high": "policy_loss.high",
    "save_steps": "watch.checkpoint_every",
    "eval_steps": "watch.heldout_every",
    "report_to": "watch.trackers",
}
_AGGREGATION = {"dapo": "token_mean", "bnpo": "token_mean", "grpo": "sequence_mean"}
_SCALE = {"group": "group", "True": "group", "batch": "batch", "none": "none", "False": "none"}
_NO_MATTER = (  # how it is computed or shown there; no other run here
    "logging_", "log_", "num_completions_to_print", "run_name", "bf16", "fp16", "tf32", "gradient_check",
    "dataloader_", "optim", "remove_unused_columns", "disable_tqdm", "push_to_hub", "hub_", "use_cpu",
    "no_cuda", "project", "trackio", "report_to", "do_", "eval_", "per_device_", "num_generations_eval",
    "save_", "ds3_", "gradient_accumulation", "steps_per_generation", "num_train_epochs", "max_steps",
    "data_seed", "pad_to_multiple_of", "torch_", "ddp_", "average_tokens", "local_rank", "debug",
    "vllm_importance_sampling", "use_bias_correction_kl", "max_prompt_length", "accelerator_config",
    "parallelism_config", "label_names", "warmup_ratio", "adam_beta", "beta", "epsilon_high",
    "reward_weights", "loss_type", "scale_rewards", "generation_batch_size", "include_", "length_column",
)  # fmt: skip


def trl_renames(keys: Iterable[str]) -> str:
    """What all of some keys that are TRL's are called here, in one sentence."""
    named = [f"{key!r} is {TRL_NAMES[key]!r}" for key in keys if key in TRL_NAMES]
    return f"TRL's {', '.join(named)} here"


def is_trl_config(args: Any) -> bool:
    """Whether `args` is a `GRPOConfig`."""
    return (
        dataclasses.is_dataclass(args)
        and not isinstance(args, type)
        and hasattr(args, "num_generations")
        and hasattr(args, "per_device_train_batch_size")
    )


def settings_of_trl(args: Any, rows: int) -> dict[str, Any]:
    """Dotted setting -> value of every field of a `GRPOConfig` that has one here.

    `rows`: of the training data, for `num_train_epochs`. Raises ConfigError that names all fields that differ
    from their defaults and mean nothing here.
    """
    settings = {key: getattr(args, name) for name, key in _PLAIN.items() if _given(args, name)}
    settings["optimizer.schedule"] = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    settings["optimizer.betas"] = [args.adam_beta1, args.adam_beta2]
    high = getattr(args, "epsilon_high", None)
    settings["policy_loss.high"] = args.epsilon if high is None else high
    settings |= _batch(args, rows)
    if getattr(args, "beta", 0.0):
        settings["loss_terms.kl"] = {"name": "kl", "coef": args.beta, "estimator": "k3"}
    if getattr(args, "warmup_ratio", None):
        settings["optimizer.warmup"] = args.warmup_ratio
    if _given(args, "max_prompt_length"):
        settings["max_prompt_tokens"] = args.max_prompt_length
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "steps" and args.save_steps >= 1:
        settings["watch.checkpoint_every"] = int(args.save_steps)
    unknown = [name for name in _changed(args) if not name.startswith(_NO_MATTER) and name not in _PLAIN]
    scale = _SCALE.get(str(getattr(args, "scale_rewards", "group")))
    aggregation = _AGGREGATION.get(getattr(args, "loss_type", "dapo"))
    unknown += ["loss_type"] if aggregation is None else []
    unknown += [] if "adamw_torch" in str(getattr(args, "optim", "adamw_torch")) else ["optim"]
    unknown += ["scale_rewards"] if scale is None else []
    if unknown:
        said = ", ".join(f"{name}={getattr(args, name)!r}" for name in unknown)
        raise ConfigError(
            f"args: GRPOConfig's {said} have no setting of the same meaning; leave them at their defaults "
            "and choose plug-ins, for instance method='dr_grpo' (`vlrl list` shows them)"
        )
    return settings | {"loss_aggregation": {"name": aggregation}, "advantage.scale": scale}


def _batch(args: Any, rows: int) -> dict[str, int]:
    """prompts_per_step, num_minibatches and steps. Raises ConfigError where completions are no whole
    groups."""
    accumulated = args.per_device_train_batch_size * args.gradient_accumulation_steps
    per_generation = getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps
    completions = args.per_device_train_batch_size * per_generation
    group = args.num_generations
    if accumulated % group or completions % group:
        raise ConfigError(
            f"args: per_device_train_batch_size {args.per_device_train_batch_size} x "
            f"gradient_accumulation_steps {args.gradient_accumulation_steps} = {accumulated} completions are "
            f"no whole groups of num_generations {group}"
        )
    prompts = completions // group
    updates = max(1, completions // accumulated)
    steps = args.max_steps // updates if args.max_steps > 0 else 0
    if not steps and not rows:
        raise ConfigError("args: num_train_epochs needs rows that can be counted; set max_steps")
    epochs = float(args.num_train_epochs)
    return {
        "prompts_per_step": prompts,
        "num_minibatches": updates,
        "steps": max(1, steps or math.ceil(epochs * rows / prompts)),
    }


def _given(args: Any, name: str) -> bool:
    return getattr(args, name, None) is not None


def _changed(args: Any) -> list[str]:
    """Fields whose values are not their defaults."""

    def default(field: dataclasses.Field[Any]) -> Any:
        made = field.default_factory
        return field.default if made is dataclasses.MISSING else made()

    fields = [field for field in dataclasses.fields(args) if field.init and not field.name.startswith("_")]
    return [field.name for field in fields if getattr(args, field.name) != default(field)]
