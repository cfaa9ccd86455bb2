"""SPEC-RL: the acceptance rule by hand; the share of reused drafts in runs."""

import json
import math

import pytest
from test_loops import TINY

from vlrl.config import load
from vlrl.methods.papers.spec_rl import SpecRL, accepted
from vlrl.registry import ConfigError
from vlrl.trainer.run import Run
from vlrl.trainer.train import train


@pytest.mark.parametrize(
    ("new", "old", "lenience", "u", "kept"),
    [
        ([-1.0, -1.0], [-1.0, -1.0], 0.0, [0.999, 0.999], 2),
        ([-1.0, -1.0], [-1.0, -1.0 + math.log(2)], 0.0, [0.999, 0.51], 1),
        ([-1.0, -1.0], [-1.0, -1.0 + math.log(2)], 0.0, [0.999, 0.49], 2),
        ([-1.0, -1.0], [-1.0, -1.0 + math.log(2)], math.log(2), [0.999, 0.999], 2),
        ([-3.0], [-1.0], 0.5, [math.exp(-1.5) + 1e-6], 0),
        ([-3.0], [-1.0], 0.5, [math.exp(-1.5) - 1e-6], 1),
        ([], [], 0.5, [], 0),
    ],
)
def test_accepted_by_hand(new, old, lenience, u, kept):
    assert accepted(new, old, lenience, u) == kept


def config(folder, *more):
    base = [TINY, f"output={folder}", "data.train.mine.name=test_ahead_rows", "rewards.mine.name=test_ahead_ids", "prompts_per_step=4"]
    base += ["sampling.max_tokens=6", "sampling.name=plain", "group_size=4", "steps=9", "watch.checkpoint_every=3"]
    return load(["base/rl", "methods/grpo", "methods/spec_rl"], [*base, *more])


def reused(folder):
    return [json.loads(line)["spec_rl/reused"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_an_unchanged_policy_reuses_everything(tmp_path):
    train(config(tmp_path, "optimizer.lr=0.0", "rollout.lenience=0.01"), live=False)
    shares = reused(tmp_path)
    assert shares[:3] == [0.0] * 3 and min(shares[3:]) > 0.99, "12 rows, 4 a step: from the second epoch on"


def test_a_changing_policy_reuses_less_with_less_lenience(tmp_path):
    shares = {}
    for lenience in (0.0, 1.0):
        train(config(tmp_path / str(lenience), "optimizer.lr=3e-2", f"rollout.lenience={lenience}"), live=False)
        shares[lenience] = sum(reused(tmp_path / str(lenience))[3:])
    assert 0 < shares[0.0] < shares[1.0] < 6.0


def test_temperatures_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="temperature 1"):
        Run(config(tmp_path, "sampling.temperature=0.7"))
    assert SpecRL().metrics() == {"spec_rl/reused": (0.0, 0.0)}
