"""Arguments of TRL's GRPOConfig with the keys here: a config that has some of them is refused with the keys
of all."""

from collections.abc import Iterable

TRL_NAMES = {
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup",
    "warmup_ratio": "optimizer.warmup",
    "max_grad_norm": "optimizer.max_grad_norm",
    "max_steps": "steps",
    "num_generations": "group_size",
    "num_iterations": "ppo_epochs",
    "per_device_train_batch_size": "prompts_per_step (TRL counts completions: divide by num_generations)",
    "gradient_accumulation_steps": "a factor of prompts_per_step",
    "max_completion_length": "sampling.max_tokens",
    "max_prompt_length": "max_prompt_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "beta": "loss_terms.kl.coef (preset grpo_kl)",
    "epsilon": "policy_loss.low",
    "epsilon_high": "policy_loss.high",
    "output_dir": "output",
    "save_steps": "watch.checkpoint_every",
    "eval_steps": "watch.heldout_every",
    "report_to": "watch.trackers",
}


def trl_renames(keys: Iterable[str]) -> str:
    """What all of some keys that are TRL's are called here, in one sentence."""
    named = [f"{key!r} is {TRL_NAMES[key]!r}" for key in keys if key in TRL_NAMES]
    return f"TRL's {', '.join(named)} here"
