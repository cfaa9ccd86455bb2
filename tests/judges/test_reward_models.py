"""Reward models: their losses by hand, training by the loop, folders that transformers loads, and rewards."""

from __future__ import annotations

import json
import math

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from vlrl.beside.process import open_process_reward_model
from vlrl.beside.reward_model import open_reward_model, pairs_right
from vlrl.config import load
from vlrl.methods.core.reward_model import RATING, STEP_LABELS, BradleyTerry, StepLabels, rated_responses
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.training import train
from vlrl.types import Group, LossInputs, Prompt, Rollout, Row

GOOD, BAD = ("a fig", "two figs", "ripe figs"), ("a brick", "two bricks", "old bricks")


def inputs(scores, lengths, groups, annotate):
    """Loss inputs whose reward scores are given per token."""
    rollouts = [Rollout(Prompt(Row("r", "q"), ()), list(range(n))) for n in lengths]
    for place, rollout in enumerate(rollouts):
        annotate(place, rollout)
    count = max(groups) + 1
    made = [
        Group(r.prompt, [x for x, g in zip(rollouts, groups) if g == n])
        for n, r in zip(range(count), rollouts)
    ]
    score_BT = torch.tensor(scores, requires_grad=True)
    x = LossInputs.from_tensors(
        torch.zeros(score_BT.shape),
        torch.zeros(score_BT.shape),
        group_B=torch.tensor(groups),
        aux_tensors={"reward_score": score_BT},
        groups=made,
    )
    return x, score_BT


def test_bradley_terry_by_hand():
    ratings = [2.0, 1.0, 1.0, 5.0, 5.0]
    scores = [[9.0, 1.0], [0.5, 9.0], [2.0, 9.0], [9.0, 1.0], [9.0, 3.0]]
    x, score_BT = inputs(scores, [2, 1, 1, 2, 2], [0, 0, 0, 1, 1], lambda i, r: RATING.set(r, ratings[i]))
    out = BradleyTerry(centre=0.1)(x)
    first = -math.log(1 / (1 + math.exp(-(1.0 - 0.5)))) + 0.1 * 1.5**2
    second = -math.log(1 / (1 + math.exp(-(1.0 - 2.0)))) + 0.1 * 3.0**2
    assert out.loss.tolist() == pytest.approx(
        [(first + second) / 2] * 3 + [0.0, 0.0]
    )  # equal ratings: no pair
    assert float(out.metrics["pairs_right"]) == 0.5 and float(out.metrics["gap"]) == pytest.approx(-0.25)
    out.loss.sum().backward()
    assert (
        score_BT.grad[0, 1] < 0 and score_BT.grad[3].abs().sum() == 0
    )  # the best one's last token is raised
    margin = BradleyTerry(margin=1.0)(x).loss[0]
    wanted = (math.log1p(math.exp(-(0.5 - 1))) + math.log1p(math.exp(-(-1.0 - 1)))) / 2
    assert margin.item() == pytest.approx(wanted)


def test_step_labels_by_hand():
    marks = [[(1, 1.0), (2, 0.25)], []]
    x, score_BT = inputs(
        [[9.0, 0.5, -1.0], [9.0, 9.0, 9.0]], [3, 3], [0, 1], lambda i, r: STEP_LABELS.set(r, marks[i])
    )
    out = StepLabels()(x)

    def softplus(v):
        return math.log1p(math.exp(v))

    wanted = (softplus(-0.5) + 0.25 * softplus(1.0) + 0.75 * softplus(-1.0)) / 2
    assert out.loss.tolist() == pytest.approx([wanted, 0.0]) and float(out.metrics["steps_right"]) == 1.0
    out.loss.sum().backward()
    assert score_BT.grad[0, 0] == 0 and score_BT.grad[0, 1] < 0 and score_BT.grad[1].abs().sum() == 0


def test_rated_responses():
    def rated(**meta):
        return rated_responses(Prompt(Row("r", "q", meta=meta), ()))

    assert rated(responses=["a", "b"], ratings=[1, 2]) == [("b", 2.0), ("a", 1.0)]
    assert rated(chosen="a", rejected="b") == [("a", 1.0), ("b", 0.0)]
    for broken in ({"responses": ["a", "b"], "ratings": [1, 1]}, {"chosen": "a"}, {}):
        with pytest.raises(ValueError, match="given_responses"):
            rated(**broken)


def records(kind):
    """Fruit is better than bricks, whatever stands before it."""
    for number in range(48):
        question = f"Name {number % 9 + 1} of them."
        good, bad = GOOD[number % 3], BAD[number % 3]
        if kind == "pairs":
            yield {
                "id": f"{number}",
                "prompt": question,
                "chosen": f"I see {good}",
                "rejected": f"I see {bad}",
            }
        else:
            scored = [{"step": f"I see {good}", "score": 1.0}, {"step": f"now {bad}", "score": 0.0}]
            yield {"id": f"{number}", "question": question, "steps": scored[:: 1 if number % 2 else -1]}


def words_of(folder, kind, *more):
    file = folder / f"{kind}.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records(kind)))
    pairs = kind == "pairs"
    return [
        f"data.train.given={{name: files, path: {file}, answers: optional}}",
        f"rollout={{name: {'given_responses' if pairs else 'given_steps'}}}",
        f"trainable={{name: reward_head, labels: {1 if pairs else 2}}}",
        f"loss_terms={{own: {{name: {'bradley_terry' if pairs else 'step_labels'}}}}}",
        "policy_loss={name: zero_loss}",
        "optimizer.lr=3e-3",
        "prompts_per_step=12",
        f"output={folder / 'run'}",
        *more,
    ]


def config_of(folder, kind, *more):
    return load(["base/rl", "models/tiny_text"], words_of(folder, kind, *more))


def prompt_of(text):
    return Prompt(Row("x", text), ({"role": "user", "content": text},))


def test_a_scalar_reward_model_is_trained_resumed_and_used(tmp_path):
    config = config_of(tmp_path, "pairs", "steps=16", "watch.checkpoint_every=8")
    train(config)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["pairs_right"] == 0.0 and rows[-1]["pairs_right"] == 1.0 and rows[-1]["gap"] > 1
    folder = tmp_path / "run" / "checkpoints" / "step-000016"
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert loaded.config.num_labels == 1 and float(loaded.score.weight.detach().abs().sum()) > 0
    model = open_reward_model(str(folder))
    assert model.form == "completion"
    rated = [
        (prompt_of("Name 7 of them."), [(f"I see {a}", 1.0), (f"I see {b}", 0.0)]) for a, b in zip(GOOD, BAD)
    ]
    assert pairs_right(model, rated) == (3, 3)
    single = [model.scores([(prompt, text)])[0] for prompt, rest in rated for text, _ in rest]
    together = model.scores([(prompt, text) for prompt, rest in rated for text, _ in rest])
    assert together == pytest.approx(single, abs=1e-4)

    reward = build(Reward, {"name": "reward_model", "model": str(folder)})
    run = Session(Plan.of(config_of(tmp_path, "pairs")))
    run.open()
    reward.setup(run)
    group = Group(rated[0][0], [Rollout(rated[0][0], [1], text) for text in ("I see a fig", "I see a brick")])
    first = reward.score_group(group)
    assert first[0] > first[1] and first == pytest.approx(together[:2], abs=1e-4)
    reward.prepare([group])
    assert reward.score_group(group) == pytest.approx(first, abs=1e-4) and not reward.state.prepared
    squashed = build(Reward, {"name": "reward_model", "model": str(folder), "squash": "sigmoid"})
    squashed.setup(run)
    assert squashed(group.rollouts[0]) == pytest.approx(1 / (1 + math.exp(-first[0])), abs=1e-4)


def test_a_resumed_reward_model_equals_one_that_was_never_stopped(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    train(config_of(whole, "pairs", "steps=6", "watch.checkpoint_every=3"))
    train(config_of(parts, "pairs", "steps=3", "watch.checkpoint_every=3"))
    train(config_of(parts, "pairs", "steps=6", "watch.checkpoint_every=3"), resume=True)
    heads = [
        AutoModelForSequenceClassification.from_pretrained(
            folder / "run" / "checkpoints" / "step-000006"
        ).score.weight
        for folder in (whole, parts)
    ]
    assert torch.equal(*heads) and float(heads[0].detach().abs().sum()) > 0


def test_a_process_reward_model_is_trained_and_used(tmp_path):
    train(config_of(tmp_path, "steps", "steps=20", "watch.checkpoint_every=20"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["steps_right"] == 1.0
    folder = tmp_path / "run" / "checkpoints" / "step-000020"
    assert AutoModelForTokenClassification.from_pretrained(folder).config.num_labels == 2
    run = Session(Plan.of(config_of(tmp_path, "steps")))
    run.open()
    model = open_process_reward_model(str(folder), "\n", run.policy)
    asked = run.policy.render(prompt_of("Name 5 of them."))
    ((good, bad),) = model.scores([(asked, ["I see ripe figs", "now old bricks"])])
    assert good > 0 > bad
    for reduce, wanted in (("min", bad), ("last", bad), ("mean", (good + bad) / 2)):
        reward = build(Reward, {"name": "step_reward_model", "model": str(folder), "reduce": reduce})
        reward.setup(run)
        prompt = prompt_of("Name 5 of them.")
        rollout = Rollout(prompt, [1], "I see ripe figs\n\nnow old bricks\n")
        assert reward(rollout) == pytest.approx((1 + wanted) / 2, abs=1e-4)
        assert reward(Rollout(prompt, [1], " ")) == 0.0


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="reward_head"):
        Plan.of(config_of(tmp_path, "pairs", "trainable={name: full}")).check()
    with pytest.raises(ConfigError, match="zero_loss"):
        Plan.of(config_of(tmp_path, "pairs", "policy_loss={name: ppo_clip}")).check()
    with pytest.raises(ConfigError, match="model: not set"):
        open_reward_model("")
