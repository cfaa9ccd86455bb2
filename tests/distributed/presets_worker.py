"""Two steps of some presets, on however many processes this was started with: the numbers of both steps, and
the weights after them."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

import hash_reward  # noqa: E402
import kit  # noqa: E402
import torch  # noqa: E402

from vlrl.trainer.step.loop import train_step  # noqa: E402

HASH, COARSE = "hash_of_tokens", "test_loop_has"
PRESETS = {
    "reinforce_pp": HASH,
    "reinforce_pp_baseline": HASH,
    "dapo": COARSE,
    "gdpo": HASH,
    "bnpo": HASH,
    "lite_ppo": HASH,
    "luffy": HASH,
    "ampo": HASH,
    "recap": HASH,
    "multiple_tickets": HASH,
    "open_reasoner_zero": HASH,
    "memory_r": HASH,
    "ghpo": HASH,
}  # a coarse one for group filters
MORE = {
    # some groups fail; no task here has a form, whose weight the preset sets
    "ghpo": ["rewards.mine.correct_at=0.9", "rewards.format=null"],
    "open_reasoner_zero": ["callbacks.critic.updates=1"],  # more would be of other groups on two ranks
    "memory_r": [  # every reward shaping that learns: from the groups of all ranks
        "reward_shaping.noise={name: noisy_verifier_corrections, appeal: mine}",
        "reward_shaping.length={name: laser_2, every: 1, target: 1}",
        "rewards.mine.correct_at=0.5",
        "rewards.bit.name=bit_of_tokens",
        "outcome=bit",
        "advantage.scale=none",
    ],
}
KEPT = (
    "critic/loss",
    "noisy_verifier/rho1",
    "memory/correct",
    "memory/wrong",
    "target_length/medium",
    "target_length/high",
    "seen",
    "seen/mean",
    "seen/constant",
    "engine/completions",
    "loss",
    "grad_norm",
    "groups",
    "rollouts",
    "tokens",
    "reward/total",
    "zero_variance",
    "skipped_groups",
)


def two_steps(preset: str, output: Path) -> None:
    """Write `output`.json and `output`.pt (main process)."""
    assert hash_reward.HashOfTokens.name == "hash_of_tokens"
    more = [
        "group_size=4",
        "prompts_per_step=3",
        "data.train.mine.count=9",
        "optimizer.lr=1.0e-3",
        "num_minibatches=1",
    ]
    more += ["rewards.second.name=test_loop_has"] if PRESETS[preset] == HASH else []
    more += ["group_filters.seen.name=seen_here", *MORE.get(preset, [])]
    run = kit.open_run(output.parent, *more, reward=PRESETS[preset], configs=("base/rl", f"methods/{preset}"))
    lines = [train_step(run).metrics for _ in range(2)]
    if run.accelerator.is_main_process:
        output.with_suffix(".json").write_text(
            json.dumps(
                [
                    {
                        name: value
                        for name, value in line.items()
                        if name in KEPT or name.startswith("group_filter/")
                    }
                    for line in lines
                ]
            )
        )
        torch.save(kit.weights(run), output.with_suffix(".pt"))
    run.policy.params.unwrap(run.accelerator)
    run.close()


if __name__ == "__main__":
    for preset in PRESETS:
        two_steps(preset, Path(sys.argv[1]) / preset)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
