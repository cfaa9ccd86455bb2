"""A judge in the run's own process: its weights are not the policy's, and its verdicts have probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from vlrl.beside.judge import Question, open_judge
from vlrl.beside.service import ModelAsk
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy

TINY = {"name": "text", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 64}}


@dataclass
class SmallRun:
    """What an engine and a judge read of a run."""

    policy: Policy
    output: Path
    seed: int = 7
    rank: int = 0
    ranks: int = 1
    params_sharded: bool = False


@pytest.fixture
def run(tmp_path):
    return SmallRun(Policy(build(Family, TINY), seed=1), tmp_path)


def test_a_judge_with_weights_of_its_own(run):
    before = {name: tensor.clone() for name, tensor in run.policy.model.state_dict().items()}
    spec = {
        "model": "tiny@1",
        "engine": {"name": "own_model", "policy": TINY},
        "max_tokens": 6,
        "logprobs": True,
    }
    judge = open_judge(spec, run, "judge", "correctness")
    own = judge.service.engine.lm.model
    assert own is not run.policy.model and not any(p.requires_grad for p in own.parameters())
    values = (("question", "1 + 1?"), ("reference", "2"), ("answer", "2"))
    (judgement,) = judge.ask([Question(values)])
    assert judgement.unread and not judgement.failed  # random weights write no verdict
    (reply,) = judge.service.ask([ModelAsk("say", max_tokens=4, logprobs=5)])
    assert 1 <= len(reply.logprobs) <= 4
    for token, top in reply.logprobs:
        assert token in top and len(top) <= 5 and sum(map(math.exp, top.values())) <= 1 + 1e-6
    assert all(torch.equal(before[name], tensor) for name, tensor in run.policy.model.state_dict().items())


def test_what_it_cannot_do(run):
    with pytest.raises(ConfigError, match=r"engine.policy: not set"):
        build(Engine, {"name": "own_model"})
    with pytest.raises(ConfigError, match="keeps its own weights"):
        build(Engine, {"name": "own_model", "policy": TINY}).sync(run.policy)
