"""TRL's `GRPOConfig` is read: every field that has a meaning here, and completions counted as prompts."""

from dataclasses import dataclass, field

import pytest

from vlrl.api import GRPOTrainer
from vlrl.plugins.registry import ConfigError

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(12)]


@dataclass
class GRPOConfig:
    """The fields of TRL 1.16's that are read, with its defaults."""

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int | None = None
    num_train_epochs: float = 3.0
    max_steps: int = -1
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    warmup_steps: float = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    save_strategy: str = "steps"
    save_steps: float = 500
    seed: int = 42
    bf16: bool | None = None
    num_generations: int = 8
    max_completion_length: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    num_iterations: int = 1
    loss_type: str = "dapo"
    scale_rewards: str | bool = "group"
    reward_weights: list | None = None
    use_vllm: bool = False
    extra: list = field(default_factory=list)


def right(text, answer):
    return float(answer in text)


def trained(config, **more):
    return GRPOTrainer("tiny_text", right, ROWS, config, **more).plan.phases[0]


def test_its_fields_are_settings(tmp_path):
    config = GRPOConfig(
        str(tmp_path / "run"), per_device_train_batch_size=8, gradient_accumulation_steps=2,
        num_generations=4, learning_rate=1e-5, temperature=0.9, beta=0.1, epsilon_high=0.28,
        max_completion_length=17, bf16=True,
    )  # fmt: skip
    phase = trained(config)
    settings = phase.settings
    assert (settings.prompts_per_step, settings.group_size, settings.num_minibatches) == (4, 4, 1)
    assert settings.steps == 9  # 3 epochs of 12 rows, 4 a step
    assert settings.optimizer.lr == 1e-5 and settings.optimizer.schedule == "linear"
    assert (phase.sampling.temperature, phase.sampling.max_tokens) == (0.9, 17)
    assert (phase.policy_loss.low, phase.policy_loss.high) == (0.2, 0.28)
    assert phase.loss_terms["kl"].coef == 0.1 and phase.loss_aggregation.name == "token_mean"
    assert phase.advantage.eps == 1e-4 and phase.seed == 42 and phase.output == tmp_path / "run"


def test_batches_for_several_updates_and_max_steps(tmp_path):
    config = GRPOConfig(
        str(tmp_path), num_generations=4, steps_per_generation=2, max_steps=10, loss_type="grpo",
        scale_rewards=False,
    )  # fmt: skip
    phase = trained(config)
    assert (phase.settings.prompts_per_step, phase.settings.num_minibatches, phase.settings.steps) == (
        4,
        2,
        5,
    )
    assert phase.loss_aggregation.name == "sequence_mean" and phase.advantage.scale == "none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"use_vllm": True, "loss_type": "sapo"},
            "GRPOConfig's use_vllm=True, loss_type='sapo' have no setting",
        ),
        ({"num_generations": 3}, "= 8 completions are no whole groups of num_generations 3"),
    ],
)
def test_what_has_no_meaning_here_is_refused_in_one_line(changes, said, tmp_path):
    with pytest.raises(ConfigError) as failure:
        trained(GRPOConfig(str(tmp_path), **changes))
    assert said in str(failure.value)


def test_all_renames_are_in_one_message(tmp_path):
    args = {"learning_rate": 1e-5, "num_generations": 4, "per_device_train_batch_size": 8, "steps": 3}
    with pytest.raises(ConfigError) as failure:
        trained(args)
    said = str(failure.value)
    assert "'optimizer.lr'" in said and "'group_size'" in said and "divide by num_generations" in said


def test_a_cell_that_runs_again_is_told_in_python(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}")
    trainer = GRPOTrainer("tiny_text", right, ROWS, {"steps": 1, "output": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"train\(resume=True\).*train\(overwrite=True\)") as failure:
        trainer.train()
    assert "--" not in str(failure.value)
    assert GRPOTrainer.save_model is GRPOTrainer.save
