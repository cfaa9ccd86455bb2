"""Rollouts that a teacher goes on with: who is taught and how long, what is joined, what is learned from it.
A fake engine speaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from make import end_step, inputs
from tiny import text_run

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.papers.thinktuning import OWN_TOKENS, ThinkTuning, ThinktuningAdvantageAware, lesson
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView

WORDS = (
    "<opinion> incorrect </opinion>\n<reason>I slipped <|x|>.</reason>\n<phrase>So it "
    "is\n<answer>7</answer></phrase>"
)


def speaking(words, function):
    made = text_run(
        ["methods/thinktuning"],
        ["num_minibatches=1", "max_prompt_tokens=4096", "sampling.max_tokens=400", "steps=60", *words],
    )
    made.engine = replace(made.engine, function=function)
    made.engine.setup(made)
    return made


def test_lessons_keep_to_their_form():
    assert lesson(WORDS) == "\n\nI slipped < |x|>.\n\nSo it is\n<answer>7</answer>"
    for wrong in (
        WORDS + " and more",
        WORDS.replace("incorrect", "unsure"),
        WORDS.replace("<reason>", ""),
        "",
        "well, " + WORDS,
    ):
        assert lesson(wrong) == ""


def test_one_of_a_group_is_taught():
    asked = []

    def say(request, index):
        if request.sampling.temperature == 0:
            asked.append(request)
            return WORDS if "<answer>0</answer>" in str(request.prompt.messages) else "no form"
        return f"<answer>{index}</answer>"

    made = speaking(["group_size=4"], say)
    prompts = [made.prompt_template(made.rows["arithmetic"][i]) for i in range(6)]
    groups = made.rollout(prompts, [4] * 6, StepView.between_steps(made))
    assert len(asked) == 6 and all(len(group) == 4 for group in groups)
    assert all(
        r.prompt.messages[0]["role"] == "system"
        and "<opinion>" in str(r.prompt.messages[0])
        and not r.prompt.prefix
        for r in asked
    )
    assert all("Response:" in str(r.prompt.messages[-1]) and r.sampling.max_tokens == 512 for r in asked)
    taught = [(g, i, r) for g in groups for i, r in enumerate(g) if r.source == "taught"]
    assert len(taught) == 3 and all(
        place == 0 for _, place, _ in taught
    )  # the others' teachers did not keep to the form
    for group, _, rollout in taught:
        end, tokenizer = OWN_TOKENS[rollout], made.policy.tokenizer
        assert (
            made.policy.decode(rollout.ids[:end]).endswith("<answer>0</answer>")
            and rollout.ids[-1] == tokenizer.eos_token_id
        )
        assert tokenizer.eos_token_id not in rollout.ids[:-1] and rollout.text.endswith(
            "So it is\n<answer>7</answer>"
        )
        assert (
            rollout.logp == []
            and rollout.loss_mask is None
            and rollout.prompt is group.prompt
            and rollout.finish == "stop"
        )
    end_step(made.rollout, groups)
    assert (
        made.rollout.metrics()
        == {"teacher/requests": 6.0, "teacher/taught": float(len(taught))}
        == made.rollout.metrics()
    )
    again = [[r.source for r in g] for g in made.rollout(prompts, [4] * 6, StepView.between_steps(made))]
    assert again == [[r.source for r in g] for g in groups]  # drawn by seed, step and row
    made.phases = [replace(made.current, settings=replace(made.settings, max_prompt_tokens=10))]
    assert not any(
        r.source == "taught" for g in made.rollout(prompts, [4] * 6, StepView.between_steps(made)) for r in g
    )
    made.close()


def test_the_share_falls_until_nobody_is_taught():
    made = speaking([], lambda request, index: WORDS)
    found = []
    for made.phase_step in (0, 1, 2, 11, 21, 50):
        found.append(made.rollout.share(made))
    assert found == pytest.approx([0.1, 0.1, 0.1 - 0.09 / 20, 0.055, 0.01, 0.01])
    assert (
        made.rollout.__call__(
            [made.prompt_template(made.rows["arithmetic"][0])], [3], StepView.between_steps(made)
        )[0]
        .rollouts[0]
        .source
        == "policy"
    )
    made.close()
    with pytest.raises(ConfigError, match="requires 'thinktuning.taught_loss'.*advantage_aware"):
        speaking(["policy_loss={name: ppo_clip}"], lambda request, index: WORDS)
    with pytest.raises(ValueError, match="rise within"):
        ThinkTuning(first=0.1, last=0.2)


def test_shaped_loss():
    """g = 0.001 A / 4: 0.0005 for A = 2, -0.0005 for A = -2."""
    x = inputs(
        logp=[[-0.1, -2.0, -7.0], [-0.1, -2.0, -7.0], [-0.1, -2.0, -7.0]],
        old=[[-0.2, -2.0, -6.0]] * 3,
        advantage=[2.0, -2.0, 2.0],
    )
    x.batch.rollouts[0].source = x.batch.rollouts[1].source = "taught"
    out = ThinktuningAdvantageAware()(x).loss
    pi = x.logp_BT.detach().exp()
    assert torch.allclose(out[0], -2 * pi[0] / (pi[0] + 0.0005))
    assert torch.allclose(out[1, :2], 2 * pi[1, :2] / (pi[1, :2] - 0.0005))
    plain = clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, 0.2, 0.2, 3.0).loss
    assert torch.allclose(out[1, 2], plain[1, 2]) and torch.allclose(
        out[2], plain[2]
    )  # too rare to be pushed down; the policy's own
    (grad,) = torch.autograd.grad(out[0].sum(), x.logp_BT)
    assert torch.allclose(grad[0], out[0].detach())  # the gradient is that of pi over a constant
    odd = ThinktuningAdvantageAware().shaped(torch.tensor([0.0004, 0.9999]), torch.tensor([-8.0, 8.0]))
    assert torch.allclose(odd, torch.tensor([1.0001, 0.9999]))
    with pytest.raises(ValueError, match="rare"):
        ThinktuningAdvantageAware(rare=0.0)
