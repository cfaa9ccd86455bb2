"""ExGRPO: which prompts enter the pool, how often they are drawn, what is replayed, and that it survives a
restart."""

from __future__ import annotations

import json
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from make import end_step, group, run
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.papers.exgrpo import Exgrpo, ExgrpoWithExperience, bucket_weight
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt, Row

ROWS = [Row(f"r{i}", f"q{i}") for i in range(12)]


def sampler(**fields):
    made = Exgrpo(**fields)
    made.setup(run(rows={"main": ROWS}, source_weights={}, seed=1, group_size=4))
    return made


def seen(name, *rewards, texts=None):
    """A group of a row as it comes back."""
    g = group(*rewards, name=name, texts=texts or [f"{name} {i}" for i in range(len(rewards))])
    for rollout in g:
        rollout.logp = [-1.0] * len(rollout)
    return g


def opened(**fields):
    """A sampler whose pool is open and which has served all rows."""
    made = sampler(**fields)
    end_step(made, [seen("elsewhere", 1, 1)])
    made(12)
    return made


def test_buckets_by_hand():
    assert bucket_weight(2, 4) == 1.0 and bucket_weight(1, 4) == pytest.approx(
        math.exp(-0.5)
    ) == bucket_weight(3, 4)


def test_the_pool_opens_with_accuracy_and_keeps_what_is_neither_solved_nor_hopeless():
    made = sampler()
    made(12)
    end_step(made, [seen("r0", 1, 0, 0, 0)])  # 0.25: not yet, and nothing is kept
    assert made.state_dict()["open"] is False and made.state_dict()["pool"] == {}
    made = opened(upper=3)
    end_step(
        made,
        [
            seen("r0", 1, 0, 1, 0),
            seen("r1", 0, 0, 0, 0),
            seen("r2", 1, 1, 1, 1),
            seen("stranger", 1, 0, 0, 0),
        ],
    )
    pool = made.state_dict()["pool"]
    assert (
        list(pool) == ["r0"]
        and pool["r0"]["correct"] == 2
        and [item["text"] for item in pool["r0"]["rollouts"]] == ["r0 0", "r0 2"]
    )
    end_step(made, [seen("r0", 1, 0, 1, 0, texts=["r0 0", "x", "new", "y"])])  # no text twice
    assert [item["text"] for item in made.state_dict()["pool"]["r0"]["rollouts"]] == ["r0 0", "r0 2", "new"]
    end_step(made, [seen("r0", 1, 1, 1, 1)])
    assert made.state_dict()["pool"] == {} and set(made.state_dict()["retired"]) == {"r0", "r2"}


def test_what_all_rollouts_solved_is_not_drawn_again_in_later_epochs():
    rows = [Row(f"r{i}", f"q{i}") for i in range(40)]
    made = Exgrpo(start=1.0)  # the pool never opens
    made.setup(run(rows={"main": rows}, source_weights={}, seed=1, group_size=4))
    epoch = [row.id for row in made(10)]
    solved = set(epoch[:8])
    end_step(made, [seen(name, *[float(name in solved)] * 4) for name in epoch])
    epoch += [row.id for row in made(10) + made(10) + made(10)]
    assert len(set(epoch)) == 40, "the epoch goes on with all rows"
    later = [row.id for row in made(10)]  # 32 rows are left, more than 10 + 20
    assert solved.isdisjoint(later) and len(set(later)) == 10 and made.state_dict()["pool"] == {}
    end_step(made, [seen(name, 1, 1, 1, 1) for name in later])
    later += [row.id for row in made(10) + made(10) + made(2)]
    assert solved.isdisjoint(later) and len(set(later)) == 32 == len(later)
    assert {row.id for row in made(10) + made(10) + made(10) + made(10)} == {row.id for row in rows}, (
        "22 rows are too few for a step of 10: all come again"
    )


def test_half_of_the_rows_are_old_ones_and_say_so():
    made = opened()
    end_step(made, [seen(f"r{i}", 1, 0, 1, 0) for i in range(6)])
    rows = made(8)
    old = [row for row in rows if made.stored_rollouts(row)]
    assert (
        len(rows) == 8
        and len({row.id for row in old}) >= 4
        and {row.id for row in rows[4:]} <= {f"r{i}" for i in range(6)}
    )
    assert made.stored_rollouts(rows[-1])[0]["ids"] == [10, 11, 12] and made.stored_rollouts(ROWS[9]) == []


def test_draws_follow_the_buckets():
    made = opened()
    end_step(made, [seen("r0", 1, 0, 0, 0), seen("r1", 1, 1, 0, 0)])
    counts = Counter(made.draw(1)[0] for _ in range(2000))
    share = 1 / (1 + math.exp(-0.5))  # 0.62
    assert (
        abs(counts["r1"] / 2000 - share) < 4 * (share * (1 - share) / 2000) ** 0.5
    )  # four standard deviations
    assert sorted(made.draw(9)) == ["r0", "r1"]  # without replacement


def test_state_survives_a_restart():
    made = opened()
    end_step(made, [seen(f"r{i}", 1, 0, 1, 0) for i in range(4)])
    again = sampler()
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert [row.id for row in made(6)] == [
        row.id for row in again(6)
    ] and again.state_dict() == made.state_dict()
    with pytest.raises(ConfigError, match="ratio"):
        Exgrpo(ratio=1.0)


def test_the_success_of_lowest_entropy_is_replayed():
    """Mean entropies 0.75 and 0.7; the recorded log-probs are equal."""
    prompt = Prompt(ROWS[0], ())
    items = [{"ids": [5, 6], "logp": [-0.3, -0.2], "text": t, "temperature": 1.3} for t in ("dull", "sure")]
    fake = run(
        prompt_sampler=SimpleNamespace(stored_rollouts=lambda row: items if row.id == "r0" else []), seed=0,
        step=1,
        engine=SimpleNamespace(generate=lambda requests: []), micro_batches=lambda groups: [groups],
        batch=lambda groups: SimpleNamespace(rollouts=[r for g in groups for r in g]),
        policy=SimpleNamespace(spaces=lambda prompt: (), version=3, forward=lambda batch,
            aux: {"entropy": torch.tensor([[1.0, 0.5], [0.6, 0.8]])}),
    )  # fmt: skip
    strategy = ExgrpoWithExperience()
    fake.make_rollout = lambda completion: completion
    fake.engine.generate = lambda requests: [
        SimpleNamespace(request=request, index=i, source="policy")
        for request in requests
        for i in range(request.n)
    ]
    fake.sampling = lambda prompt, attempt: "same"
    (found,), (single,) = strategy([prompt], [4], fake), strategy([prompt], [1], fake)
    strategy.end_step(fake)
    assert strategy.metrics() == {"exgrpo/replayed": (1.0, 0.0)}
    assert [r.source for r in found] == ["policy"] * 3 + ["replay"] and len(single) == 1
    assert (found.rollouts[3].text, found.rollouts[3].logp, found.rollouts[3].temperature) == (
        "sure",
        [-0.3, -0.2],
        1.3,
    )
    with pytest.raises(ConfigError, match="requires 'exgrpo.experience'"):
        text_run(["methods/exgrpo"], ["prompt_sampler={name: shuffle}"])


def test_preset_replays():
    run = text_run(["methods/exgrpo"], ["prompt_sampler.start=0.1", "data.train.arithmetic.count=6"])
    metrics = steps(run, 4)
    assert (
        metrics[-1]["data/pool"] > 0
        and metrics[-1]["exgrpo/replayed"] > 0
        and any(r.source == "replay" for g in last_step(run).groups for r in g)
        and metrics[-1]["grad_norm"] > 0
    )
