"""SPEC-RL: the acceptance rule by hand; the share of reused drafts in runs."""

import json
import math

import pytest
import torch
from test_loops import TINY

from vlrl.config import load
from vlrl.methods.papers.spec_rl import SpecRL, accepted
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.views import StepView
from vlrl.training import train


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
    base = [
        TINY,
        f"output={folder}",
        "data.train.mine.name=test_ahead_rows",
        "rewards.mine.name=test_ahead_ids",
        "prompts_per_step=4",
    ]
    base += [
        "sampling.max_tokens=6",
        "sampling.name=plain",
        "group_size=4",
        "steps=9",
        "watch.checkpoint_every=3",
    ]
    return load(["base/rl", "methods/grpo", "methods/spec_rl"], [*base, *more])


def reused(folder):
    return [
        json.loads(line)["spec_rl/reused"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def test_an_unchanged_policy_reuses_everything(tmp_path):
    train(config(tmp_path, "optimizer.lr=0.0", "rollout.lenience=0.01"), live=False)
    shares = reused(tmp_path)
    assert shares[:3] == [0.0] * 3 and min(shares[3:]) > 0.99, "12 rows, 4 a step: from the second epoch on"


def test_a_changing_policy_reuses_less_with_less_lenience(tmp_path):
    shares = {}
    for lenience in (0.0, 1.0):
        train(
            config(tmp_path / str(lenience), "optimizer.lr=3e-2", f"rollout.lenience={lenience}"), live=False
        )
        shares[lenience] = sum(reused(tmp_path / str(lenience))[3:])
    assert 0 < shares[0.0] < shares[1.0] < 6.0


def test_temperatures_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="temperature 1"):
        Plan.of(config(tmp_path, "sampling.temperature=0.7"))
    assert SpecRL().metrics() == {"spec_rl/reused": (0.0, 0.0)}


def second_visit(folder, kept_tokens):
    """(ids, log-probs, prefilled tokens, kept drafts' tokens) of a row's second visit, after a small change
    of the weights."""
    run = Session(
        Plan.of(
            config(
                folder,
                "rollout.lenience=0.2",
                "sampling.max_tokens=24",
                f"engine={{name: hf, conversation_tokens: {kept_tokens}}}",
            )
        )
    )
    run.open()
    run.enter(0)
    view = StepView.between_steps(run)
    prompts = [run.prompt_template(row) for row in run.prompt_sampler(2)]
    run.rollout(prompts, [4, 4], view)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in run.policy.model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    run.policy.advance()
    run.engine.sync(run.policy)
    before = run.engine.counters["prefill_tokens"]
    run.rollout.state.counts.clear()
    rollouts = [rollout for group in run.rollout(prompts, [4, 4], view) for rollout in group]
    scored = run.engine.score_all([(r.prompt, r.ids) for r in rollouts])
    counted = (
        run.engine.counters["prefill_tokens"]
        - before
        - sum(len(run.policy.encode(r.prompt)) + len(r) for r in rollouts)
    )
    run.close()
    reused = run.rollout.state.counts.get("reused", 0.0)
    return [r.ids for r in rollouts], [r.logp for r in rollouts], scored, counted, reused


def test_generation_continues_from_the_keys_and_values_of_the_verification(tmp_path):
    ids, logp, scored, tokens, reused = second_visit(tmp_path / "a", 65536)
    all_ids, all_logp, _, all_tokens, all_reused = second_visit(tmp_path / "b", 1)  # keeps nothing
    assert ids == all_ids and reused == all_reused > 8, "the same samples, of which a part was accepted"
    assert [len(row) for row in logp] == [len(row) for row in ids]
    for mine, theirs, truth in zip(logp, all_logp, scored, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4) and mine == pytest.approx(truth, abs=1e-4), (
            "log-probs of the present policy"
        )
    assert tokens < all_tokens - 0.9 * (reused - 8), "accepted tokens are not run again"
