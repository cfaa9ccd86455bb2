"""RL4LMs' NLPO: masks, the renormalised log-probs, the loss, the masking policy's renewal and the KL
controller."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny import text_run
from vlrl_data.generators.prose import GenConcepts
from vlrl_rewards.verified import TextMetric

from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.papers.rl4lms import (
    LOG_MASS,
    Rl4lms,
    Rl4lmsClip,
    Rl4lmsKl,
    Rl4lmsLogMass,
    kept_tokens,
    masking_policy,
    packed,
    unpacked,
)
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.step.loop import train_step
from vlrl.trainer.views import StepView
from vlrl.types import LossInputs

P = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
MASKED = [
    "sampling={name: rl4lms, top_mask: 0.6, min_kept: 5, every: 2, max_tokens: 8}",
    "policy_loss={name: rl4lms.clip}",
    "num_minibatches=2",
    "rewards={random: {name: random, weight: 1.0}}",
]


def test_the_mask_holds_the_likeliest_tokens():
    assert kept_tokens(P, 0.75, 1).tolist() == [[False, True, False, True]]
    assert kept_tokens(P, 0.85, 1).tolist() == [[False, True, True, True]]  # 0.8 stands before 0.15
    assert kept_tokens(P, 0.1, 3).tolist() == [[False, True, True, True]]  # at least 3
    assert kept_tokens(P, 0.1, 1, special=[0]).tolist() == [[True, True, False, False]]
    assert kept_tokens(P, 1.0, 1).all()


@pytest.mark.parametrize("width", [1, 7, 8, 9, 300])
def test_bits_are_the_mask(width):
    mask = torch.rand(3, width) < 0.5
    assert packed(mask).shape == (3, math.ceil(width / 8)) and packed(mask).dtype == torch.uint8
    assert torch.equal(unpacked(packed(mask), width), mask)


def test_log_mass_and_its_gradient():
    logits = P.clone().requires_grad_()
    bits = packed(torch.tensor([[False, True, False, True]]))
    value = Rl4lmsLogMass().from_values(logits, torch.tensor([1]), bits)
    assert value.item() == pytest.approx(math.log(0.8), abs=1e-6)
    (grad,) = torch.autograd.grad(P.log_softmax(-1)[0, 1] + logits.log_softmax(-1)[0, 1] - value[0], logits)
    # d log(p_1 / (p_1 + p_3)): 1 - 5/8 at token 1, -3/8 at token 3, nothing elsewhere
    assert grad[0].tolist() == pytest.approx([0.0, 0.375, 0.0, -0.375], abs=1e-6)
    outside = Rl4lmsLogMass().from_values(P, torch.tensor([2]), bits)
    assert outside.item() == pytest.approx(math.log(0.95), abs=1e-6)  # a drawn token is part of its set


def test_the_clip_acts_on_the_masked_ratio():
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mass = torch.tensor([[-0.5, -0.1]])
    x = LossInputs.from_tensors(logp, torch.tensor([[1.0, 1.0]]), old_logp_BT=torch.tensor([[-1.0, -1.0]]))
    x.aux_tensors[LOG_MASS] = mass
    x.batch.groups[0].rollouts[0].signals[LOG_MASS] = [-0.1, -0.1]
    loss = Rl4lmsClip()(x).loss
    # ratios: exp((-1 + 0.5) - (-1 + 0.1)) = exp(0.4), clipped at 1.2; exp(-1)
    assert loss[0].tolist() == pytest.approx([-1.2, -math.exp(-1)])
    x.aux_tensors[LOG_MASS] = torch.zeros(1, 2)
    x.batch.groups[0].rollouts[0].signals[LOG_MASS] = [0.0, 0.0]
    assert torch.equal(Rl4lmsClip()(x).loss, PPOClip()(x).loss)


def test_the_masked_log_probs_are_those_that_the_engine_sampled_with():
    run = text_run([], MASKED, engine="hf")
    step = train_step(run)
    rollouts = [rollout for group in step.groups for rollout in group]
    assert rollouts
    for rollout in rollouts:
        mass = rollout.signals[LOG_MASS]
        own = [a - b for a, b in zip(rollout.signals["old_logp"], mass, strict=True)]
        assert own == pytest.approx(rollout.logp, abs=1e-4)
        assert all(math.log(0.5) < value < 0 for value in mass)
    assert 0.5 < step.metrics["rl4lms/mass"] < 0.7 and 0 < step.metrics["rl4lms/kept"] < 1
    run.close()


def test_the_masking_policy_is_renewed_and_saved():
    run = text_run([], MASKED, engine="hf")
    masking, name = masking_policy(run), "lm_head.weight"

    def distance():
        state = masking.policy.model.state_dict()
        return max(float((state[k] - v).abs().max()) for k, v in run.policy.model.state_dict().items())

    assert distance() == 0.0
    train_step(run)
    assert distance() > 0 and run.sampling.state.age == 1
    saved = {k: v for k, v in run.sampling.state.state_dict().items()}
    saved["weights"] = {k: v.clone() for k, v in saved["weights"].items()}
    train_step(run)
    assert distance() == 0.0 and run.sampling.state.age == 0
    run.sampling.state.load_state_dict(saved)
    assert distance() > 0 and run.sampling.state.age == 1 and name in saved["weights"]
    run.close()


def test_the_kl_coefficient_follows_its_target():
    shaping = Rl4lmsKl(beta=0.01, target=1.0)
    context = SimpleNamespace(gather_and_clear=lambda values: list(values))
    for values, factor in (([3.0, 1.0], 1.02), ([1.1, 1.1], 1.01), ([-4.0], 0.98)):
        before = shaping.coefficient
        shaping.state.step[:] = values
        shaping.end_step(context)
        assert shaping.coefficient == pytest.approx(before * factor)
    fixed = replace(shaping, target=0.0)
    fixed.state.step[:] = [9.0]
    fixed.end_step(context)
    assert fixed.coefficient == 0.01 and fixed.metrics()["kl_reward/kl"] == 9.0


def test_sentences_with_given_words_are_paid_by_the_nearest_reference():
    source = GenConcepts(count=40)
    rows, reward = list(source()), TextMetric(metric="meteor")
    for row in rows:
        words = row.question.removeprefix("generate a sentence with: ").rstrip(".").split()
        assert len(words) == 4 and words == row.meta["concepts"]
        best = reward.score(row.target, row.answer)
        assert best == pytest.approx(1 - 0.5 / len(row.target.split()) ** 3)
        jumbled = " ".join(reversed(row.target.rstrip(".").split()))
        assert 0 < reward.score(jumbled, row.answer) < best
        for bad in ("", "...", "I cannot answer this.", "zebra " * 30):
            assert reward.score(bad, row.answer) == 0.0
        assert reward.score(" ".join([row.target] * 60), row.answer) < 0.5
    heldout = {row.question for row in GenConcepts(count=40, split="heldout")()}
    assert not {frozenset(q.split()) for q in heldout} & {frozenset(row.question.split()) for row in rows}


def test_mistakes_are_named():
    for bad in ({"top_mask": 0.0}, {"top_mask": 1.5}, {"min_kept": 0}, {"every": 0}):
        with pytest.raises(ValueError, match="top_mask"):
            Rl4lms(**bad)
    with pytest.raises(ConfigError, match="rl4lms"):
        text_run([], ["policy_loss={name: rl4lms.clip}"])
    sharded = SimpleNamespace(params_sharded=True)
    with pytest.raises(ConfigError, match="DDP or ZeRO-2"):
        masking_policy(sharded)


def test_held_out_answers_are_masked_too():
    run = text_run([], MASKED, engine="hf")
    prompt = run.prompt_template(run.rows["arithmetic"][0])
    sampling = StepView.between_steps(run).sampling(prompt, 0)
    assert len(sampling.processors) == 1
    logits = torch.randn(run.policy.model.get_output_embeddings().weight.shape[0])
    masked = sampling.processors[0]((), logits.clone())
    assert torch.isneginf(masked).any() and torch.isfinite(masked).sum() >= 5
    run.close()
