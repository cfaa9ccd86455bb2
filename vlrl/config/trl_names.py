"""Arguments of TRL's GRPOConfig with the keys here: a config that has one of them is refused with the key."""

TRL_NAMES = {
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup",
    "max_grad_norm": "optimizer.max_grad_norm",
    "max_steps": "steps",
    "num_generations": "group_size",
    "num_iterations": "ppo_epochs",
    "per_device_train_batch_size": "prompts_per_step",
    "max_completion_length": "sampling.max_tokens",
    "max_prompt_length": "max_prompt_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "beta": "loss_terms.kl (method='grpo_kl' has it)",
    "epsilon": "policy_loss.low",
    "epsilon_high": "policy_loss.high",
    "output_dir": "output",
    "save_steps": "watch.checkpoint_every",
    "eval_steps": "watch.heldout_every",
    "report_to": "watch.trackers",
}
