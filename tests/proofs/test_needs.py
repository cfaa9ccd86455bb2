"""What a plug-in needs so that it acts is derived from the plug-in and compared with the preset as it ships:
several updates of a batch for a loss of the ratio, answers of the lengths that a length reward tells apart,
rows of the tasks that a reward reads. (Second visits to a row: test_proofs.py.)"""

import inspect
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from proof_kit.proof import model_of, presets, task_of

from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.plugins.stages import PolicyLoss
from vlrl.trainer.plan import Plan
from vlrl.types import Rollout

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
from make import inputs, run  # noqa: E402
from task_kit import MODELS  # noqa: E402

PRESETS = presets()
REWARDED = [
    preset for preset in PRESETS if load([preset]).tree.get("rewards")
]  # the others have their task's
# a clip that cannot act, as most trainers have it, is no mechanism of a paper; other losses of the ratio are
PLAIN = ("policy_gradient", "ppo_clip", "zero_loss")
B, T = 4, 6


def phases(preset):
    """The trees of a preset's phases, or its own."""
    config = load([preset])
    return [config.phase(name) for name in config.phases] if config.tree.get("phases") else [config.tree]


def acts_at_ratio_one(spec):
    """Whether a loss has another gradient than the plain policy gradient while the policy is that of the
    batch's start: for own rollouts and for those of the writers that the loss names."""
    loss = build(PolicyLoss, spec)
    draw = torch.Generator().manual_seed(0)
    logp = (-2 * torch.rand(B, T, generator=draw, dtype=torch.float64) - 0.05).tolist()
    fields = {
        name: torch.rand(B, T, 3 if "topk" in name else 1, generator=draw).squeeze(-1) for name in loss.needs
    }
    fields = {name: value.expand(B, T, *value.shape[2:]).tolist() for name, value in fields.items()}
    of_writers = [[value - 0.3 for value in row] for row in logp]
    x = inputs(logp, advantage=[1, -1, 0.5, -0.5], reward=[1.0, 0, 1, 0], sampled=of_writers, **fields)
    for rollout, source in zip(x.batch.rollouts[:2], getattr(loss, "sources", ()) * 2):
        rollout.source = source
    (gradient,) = torch.autograd.grad(loss(x).loss.sum(), x.logp_BT)
    return not torch.allclose(gradient, -x.advantage_BT)


def test_which_losses_need_a_ratio():
    needing = {"archer", "dcpo", "gspo", "sapo", "cispo", "entropy_mechanism.clip_cov"}
    acting = {"nft", "rover"}
    assert not any(acts_at_ratio_one({"name": name}) for name in needing)
    assert all(acts_at_ratio_one({"name": name}) for name in acting)


@pytest.mark.sweep
@pytest.mark.parametrize("preset", PRESETS)
def test_a_loss_of_the_ratio_ships_with_several_updates_of_a_batch(preset):
    for tree in phases(preset):
        spec = tree.get("policy_loss") or {"name": "ppo_clip"}
        updates = tree.get("num_minibatches", 1) * tree.get("ppo_epochs", 1)
        if updates == 1 and spec["name"] not in PLAIN:
            assert acts_at_ratio_one(spec), (
                f"{preset}: {spec['name']} with one update of a batch: the ratio is 1"
            )


@cache
def shipped(preset):
    """The phases of a preset on its own task, as it ships, with what it leaves to its user."""
    task, needed = task_of(preset), MODELS.get(preset.removeprefix("methods/"), ())
    needed = [
        value
        for value in needed
        if value.startswith(
            (
                "reward_shaping.process",
                "rollout.prm",
                "rollout.teachers",
                "rewards.preference.model",
                "rewards.score.model",
                "rewards.verified",
                "callbacks.cooper.assistant",
            )
        )
    ]
    return Plan.of(load(["base/rl", model_of(task), f"tasks/{task}", preset], needed)).phases


def tasks_of(phase):
    """The tasks of the rows that a phase trains on, and of those that its plug-ins make."""
    rows = {row.task for split in phase.rows("train").values() for row in split}
    others = [plugin for _, plugin in phase.plugins() if plugin.kind not in ("reward", "source")]
    makers = [inspect.getsource(inspect.getmodule(type(plugin))) for plugin in others]
    return rows, lambda task: any(f'"{task}"' in source for source in makers)


@pytest.mark.sweep
@pytest.mark.parametrize("preset", REWARDED)
def test_every_reward_has_rows_that_it_reads(preset):
    """In some phase, unless the rollout strategy makes rows of that task."""
    rows, read = set(), {}
    for phase in shipped(preset):
        own, made = tasks_of(phase)
        rows |= own
        read |= {
            slot: r.tasks for slot, r in phase.rewards.items() if r.tasks and not any(map(made, r.tasks))
        }
    for slot, tasks in read.items():
        assert rows & set(tasks), f"{preset}: rewards.{slot} reads {tasks}, the rows are {sorted(rows)}"


def reads_lengths(reward):
    """Whether a reward counts the tokens of a rollout."""
    return "sampled_tokens" in inspect.getsource(type(reward))


@pytest.mark.sweep
@pytest.mark.parametrize("preset", REWARDED)
def test_length_rewards_tell_the_lengths_of_the_run_apart(preset):
    """For every prompt, the shortest and the longest answer of the run and two between differ in reward."""
    for phase in shipped(preset):
        most = phase.sampling.max_tokens
        for slot, reward in phase.rewards.items():
            if not reads_lengths(reward):
                continue
            reward.setup(run(sampling=phase.sampling))
            for row in list(next(iter(phase.rows("train").values())))[:64]:
                prompt = phase.prompt_template(row)
                scores = [
                    reward(Rollout(prompt, ids=[1] * n, text="." * n + "<answer>1</answer>", finish="stop"))
                    for n in (1, most // 3, 2 * most // 3, most)
                ]
                assert max(scores) - min(scores) > 0.05, (
                    f"{preset}: rewards.{slot}, {prompt.messages}: {scores}"
                )
