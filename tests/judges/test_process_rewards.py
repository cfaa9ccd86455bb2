"""Process reward models: where they are read, what a score is, and that PURE's step scores come from them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from vlrl.beside.process import ProcessRewardModel, open_process_reward_model
from vlrl.methods.common.step_scores import STEP_SCORES
from vlrl.methods.papers.pure import PureProcessRewards
from vlrl.plugins.registry import ConfigError
from vlrl.policy.tiny import qwen_tokenizer
from vlrl.types import Group, Prompt, Rollout, Row


class Characters:
    """A tokenizer whose tokens are characters."""

    def __len__(self):
        return 128

    def encode(self, text, add_special_tokens=False):
        return [ord(char) for char in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


class Classifier(torch.nn.Module):
    """Logits (0, sum of the ids so far / 100): what is read tells the position."""

    def __init__(self, labels=2):
        super().__init__()
        self.config = SimpleNamespace(num_labels=labels)
        self.scale = torch.nn.Parameter(torch.tensor(0.01))
        self.calls = []

    def forward(self, input_ids, attention_mask):
        self.calls.append(tuple(input_ids.shape))
        right = (input_ids * attention_mask).cumsum(-1) * self.scale
        return SimpleNamespace(logits=torch.stack([torch.zeros_like(right), right], -1))


def score_of(text):
    """P(right) - P(wrong) = tanh(d / 2) of logits (0, d), d the sum of all ids up to the mark."""
    return math.tanh(sum(map(ord, text)) / 200)


def test_a_step_is_read_at_its_mark():
    model = ProcessRewardModel(Classifier(), Characters(), mark="\n")
    scores = model.scores([("\x01", ["\x02\x03", "\x04"]), ("\x05", []), ("", ["\x01"])])
    assert scores[0] == pytest.approx([score_of("\x01\x02\x03\n"), score_of("\x01\x02\x03\n\x04\n")])
    assert scores[1] == [] and scores[2] == pytest.approx([score_of("\x01\n")])
    assert not any(parameter.requires_grad for parameter in model.model.parameters())


def test_batches_keep_to_their_size_and_padding_changes_nothing():
    solutions = [("\x01" * n, ["\x02", "\x03"]) for n in (3, 1, 9, 2)]
    small, large = (
        ProcessRewardModel(Classifier(), Characters(), batch_tokens=tokens) for tokens in (16, 1000)
    )
    assert [value for row in small.scores(solutions) for value in row] == pytest.approx(
        [value for row in large.scores(solutions) for value in row]
    )
    assert large.model.calls == [(4, 13)] and small.model.calls == [(2, 6), (1, 7), (1, 13)]


def test_a_folder_of_a_token_classifier_is_loaded(tmp_path):
    policy = SimpleNamespace(tokenizer=qwen_tokenizer(512), device="cpu")
    tiny = open_process_reward_model("tiny", "\n", policy)
    tiny.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    loaded = open_process_reward_model(str(tmp_path), "\n", SimpleNamespace(tokenizer=None, device="cpu"))
    solutions = [("What is 1+2?", ["1+2=3", "so 3"]), ("2?", ["2"])]
    expected = [value for row in tiny.scores(solutions) for value in row]
    assert [value for row in loaded.scores(solutions) for value in row] == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 3 and all(-1 <= value <= 1 for value in expected)


def test_step_scores_end_where_the_steps_of_the_rollout_end():
    text = "ab\n\nc\n\n\n\nd"  # the empty step between the blank lines belongs to the next one
    prompt = Prompt(Row("r", "q"), ())
    rollout, empty = (
        Rollout(prompt, [ord(char) for char in said], said, reward=0.5) for said in (text, "\n\n")
    )
    shaping = PureProcessRewards(model="tiny")
    policy = SimpleNamespace(
        tokenizer=Characters(), decode=Characters().decode, render=lambda prompt: "q", device="cpu"
    )
    shaping.setup(SimpleNamespace(policy=policy))
    shaping.state.model = ProcessRewardModel(Classifier(), Characters())
    assert shaping(Group(prompt, [rollout, empty])) == [0.5, 0.5]  # rewards stay
    ends, scores = zip(*STEP_SCORES[rollout])
    assert ends == (4, 7, 10) and STEP_SCORES[empty] == []
    assert scores == pytest.approx([score_of("qab\n"), score_of("qab\nc\n"), score_of("qab\nc\nd\n")])


def test_what_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="name a process reward model"):
        PureProcessRewards().check(SimpleNamespace())
    with pytest.raises(ConfigError, match="delimiter"):
        PureProcessRewards(delimiter="")
    with pytest.raises(ConfigError, match="3 labels"):
        ProcessRewardModel(Classifier(labels=3), Characters())
    with pytest.raises(ConfigError, match="has no token"):
        ProcessRewardModel(Classifier(), Characters(), mark="")
