"""SuperHF, the multiple tickets, RECAP, RLSP, Tulu 3, AceReason and Skywork R1V3: their pieces by hand, and
their presets on the lab."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from make import end_step, group, run
from tiny import steps, text_run, vision_run

from vlrl.methods.papers.acereason import Acereason, AcereasonDomains
from vlrl.methods.papers.multiple_tickets import MultipleTickets, ticket
from vlrl.methods.papers.recap import Recap, priority
from vlrl.methods.papers.rlsp import Rlsp
from vlrl.methods.papers.skywork_r1v3 import SkyworkR1v3
from vlrl.methods.papers.superhf import Superhf
from vlrl.methods.papers.tulu_3 import Tulu3
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [[1], [0], [0]]),
        ({"keep": 2}, [[1, 3], [0, 1], [0, 1]]),
        ({"reward_above": 0.5}, [[1], [0]]),
        ({"reward_above": 2.0}, []),
    ],
)
def test_only_the_best_stay(fields, kept):
    groups = [
        group(*rewards, texts=[str(i) for i in range(len(rewards))])
        for rewards in ((0.0, 1.0, 0.5, 1.0), (1.0, 1.0), (0.1, 0.1))
    ]
    out = Superhf(**fields)(groups)
    assert [[int(rollout.text) for rollout in g] for g in out] == kept
    assert [len(g) for g in groups] == [4, 2, 2] and all(
        len(g) + len(g.untrained) == (4 if g is out[0] else 2) for g in out
    )


def test_an_empty_completion_is_not_imitated():
    (out,) = Superhf()([group(1.0, 2.0, 0.5, texts=["a", " \n", ""])])
    assert [rollout.text for rollout in out] == ["a"] and len(out.untrained) == 2
    assert Superhf()([group(1.0, 2.0, texts=["", " "])]) == []


def test_tickets_are_a_function_of_name_and_seed():
    shape = torch.Size([200, 100])
    one, again, other = ticket("a", shape, 0.01, 0), ticket("a", shape, 0.01, 0), ticket("a", shape, 0.01, 1)
    assert (
        torch.equal(one, again) and abs(int(one.sum()) - 200) < 4 * (200 * 0.99) ** 0.5
    )  # four standard deviations
    assert (
        int((one & other).sum()) / int((one | other).sum()) < 0.03
    )  # two masks of 1% share half a hundredth of their union
    assert ticket("a", shape, 1.0, 0).all() and not torch.equal(one, ticket("b", shape, 0.01, 0))
    with pytest.raises(ValueError, match="density"):
        MultipleTickets(density=0.0)


def test_only_the_ticket_is_trained():
    run = text_run(["methods/multiple_tickets"], ["trainable.density=0.1"])
    before = {name: p.detach().clone() for name, p in run.policy.model.named_parameters()}
    metrics = steps(run)
    moved = total = 0
    for name, p in run.policy.model.named_parameters():
        changed, mask = p.detach() != before[name], ticket(name, p.shape, 0.1, 0)
        assert not (changed & ~mask).any()
        moved, total = moved + int(changed.sum()), total + int(mask.sum())
    assert moved > total / 4 and metrics[-1]["trainable/share"] == pytest.approx(
        total / sum(p.numel() for p in run.policy.model.parameters())
    )


def test_tickets_refuse_spread_weights():
    with pytest.raises(ConfigError, match="FSDP"):
        MultipleTickets().setup(run(state_sharded=True))


def objectives(**fields):
    made = Recap(**fields)
    made.setup(
        run(
            rewards={
                "a": SimpleNamespace(weight=1.0),
                "b": SimpleNamespace(weight=0.5),
                "logged": SimpleNamespace(weight=0.0),
            }
        )
    )
    return made


def scored(a, b):
    """A group of one rollout with these raw scores."""
    g = group(a + 0.5 * b)
    g.rollouts[0].rewards = {"a": a, "b": b, "logged": 9.0}
    return g


def test_priority_by_hand():
    assert priority([0.5, 0.5, 0.5], 2, 0.01) is None
    assert priority([0.0] * 4, 2, 0.01) == pytest.approx(1.0)  # always earned: c = 1, i = 0
    assert priority([0.5] * 4, 2, 0.01) == pytest.approx(1.0)  # saturated and stable
    # windows (0.8, 0.6) and (0.5, 0.3): means 0.7 and 0.4; deviations from 0.4: 0.4, 0.2, 0.1, 0.1
    spread = math.sqrt((0.16 + 0.04 + 0.01 + 0.01) / 3)
    assert priority([9.0, 0.8, 0.6, 0.5, 0.3], 2, 1e-9) == pytest.approx(0.7 / 0.4 + spread / 1.1)


def test_objectives_that_move_get_more_weight():
    shape = objectives(tau=1.0, window=1)
    for a, b in ((1.0, 0.2), (1.0, 0.6)):
        assert shape(scored(a, b)) == [
            pytest.approx(a + 0.5 * b)
        ]  # equal weights until two windows were seen
        end_step(shape, [])
        assert shape.metrics() == shape.metrics()
    s_a, s_b = 1.0, 0.81 / 0.41 + math.sqrt(0.4**2) / 1.22  # losses of b: 0.8, then 0.4
    share = math.exp(s_b) / (math.exp(s_a) + math.exp(s_b))
    weights = shape.weights()
    assert weights == pytest.approx({"a": 2 * (1 - share), "b": 2 * share})
    assert shape(scored(1.0, 1.0)) == [pytest.approx(weights["a"] + 0.5 * weights["b"])]
    again = objectives(tau=1.0, window=1)
    again.load_state_dict(json.loads(json.dumps(shape.state_dict())))
    assert again.weights() == weights
    for wrong in ({"tau": 0.0}, {"eps": 0.0}, {"window": 0}):
        with pytest.raises(ValueError, match="tau"):
            Recap(**wrong)


def test_search_is_paid_apart_and_never_more_than_being_right():
    """GuanghaoYe/Emergence-of-Thinking e7feea7d, orm_server_efficient.py: r, or -0.5 without an answer, less
    20 / n, n a quarter of the characters before the answer, and 0.8 of it + 0.2 of the judge's score."""
    raw = {"math": [1.0, 0.0, 0.0, 1.0, 1.0], "effort": [0.5, 1.0, 0.0, 1.0, 1.0]}
    g = group(
        1.0,
        0.0,
        0.0,
        1.0,
        1.0,
        texts=["s" * 160 + "<answer>3</answer>", "w" * 80, " " + "r" * 320 + " ", "<answer>3</answer>", ""],
        raw=raw,
    )
    # 160, 80 and 320 characters are 40, 20 and 80 tokens; the fourth has nothing before its answer
    assert Rlsp(form="<answer>")(g) == pytest.approx([1 - 0.5, -0.5 - 1.0, -0.5 - 0.25, 0.0, 0.0])
    assert Rlsp()(g)[1:] == pytest.approx([0 - 1.0, 0 - 0.25, 1 - 20 / (18 / 4), 0.0])
    assert Rlsp(form="<answer>", length=0.0)(g) == pytest.approx([1.0, -0.5, -0.5, 1.0, -0.5])
    assert Rlsp(form="<answer>", effort="effort")(g) == pytest.approx(
        [0.8 * 0.5 + 0.1, 0.8 * -1.5 + 0.2, 0.8 * -0.75, 0.0, 0.0]
    )
    del g.rollouts[2].rewards["effort"]
    assert Rlsp(effort="effort")(g)[2] == pytest.approx(0.8 * -0.25 + 0.1)
    with pytest.raises(ValueError, match="alpha"):
        Rlsp(alpha=1.5)


def test_verified_is_all_or_nothing():
    g = group(1.1, 0.1, 1.0, finish=["stop", "stop", "length"])
    assert Tulu3()(g) == [10.0, 0.0, -10.0]


@pytest.mark.parametrize(
    ("step", "limit"), [(0, 8), (9, 8), (10, 16), (25, 24), (30, 32), (39, 32), (99, 32)]
)
def test_lengths_grow_in_stages(step, limit):
    sampling = Acereason(max_tokens=32)
    assert sampling.limit() == 32
    sampling.setup(SimpleNamespace(phase_step=step, settings=SimpleNamespace(steps=40)))
    assert sampling(None, 0).max_tokens == limit == sampling.metrics()["acereason/max_tokens"]


def domains(**fields):
    rows = {
        name: [Row(f"{name}{i}", "q", meta={"pass_rate": i / 4} if name == "math" else {}) for i in range(4)]
        for name in ("math", "code")
    }
    made = AcereasonDomains(**fields)
    made.setup(run(rows=rows, source_weights={}, seed=0, phase_step=0, settings=SimpleNamespace(steps=6)))
    return made


def test_one_domain_at_a_time_and_hard_prompts_at_the_end():
    sampler, sources = domains(), []
    for step in range(6):
        sampler.run.phase_step = step
        sources.append({row.id[:4] for row in sampler(4)})
    assert sources == [{"math"}] * 3 + [{"code"}] * 2 + [{"math"}]
    sampler.run.phase_step = 2
    assert {row.id for row in sampler(6)} == {"math0", "math1"}  # pass rates 0 and 1/4 of at most 6/16
    end_step(
        sampler, [group(1.0, 1.0, name="math0"), group(1.0, 0.0, 0.0, name="math3")]
    )  # what was seen last counts
    assert {row.id for row in sampler(6)} == {"math1", "math3"}
    again = domains()
    again.run.phase_step = 2
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert [row.id for row in again(5)] == [row.id for row in sampler(5)]
    end_step(sampler, [group(1.0, name=f"math{i}") for i in range(4)])
    assert len(sampler(4)) == 4  # nothing is hard: rows as they come
    with pytest.raises(ConfigError, match="order"):
        domains(order=(0, 2), hard=())
    with pytest.raises(ConfigError, match="hard"):
        domains(order=(0, 1), hard=(2,))


def test_critical_tokens_are_found_and_their_entropy_averaged():
    words = {1: " Wait", 2: ",", 3: "waiting", 4: "Alternatively", 5: " let"}
    g = group(1.0, 0.0, lengths=[3, 2])
    g.rollouts[0].ids, g.rollouts[1].ids = [1, 2, 3], [4, 5]
    g.rollouts[0].signals, g.rollouts[1].signals = {"entropy": [1.0, 9.0, 9.0]}, {"entropy": [2.0, 6.0]}
    fake = SimpleNamespace(
        groups=[g], policy=SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids: words[ids[0]]))
    )
    assert SkyworkR1v3()(fake, []) == {"share": (3.0, 5), "entropy": (9.0, 3.0)}
    assert SkyworkR1v3(words=("therefore",))(fake, []) == {"share": (0.0, 5)}
    with pytest.raises(ConfigError, match="words"):
        SkyworkR1v3(words=())


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("superhf", []), ("recap", []), ("rlsp", []), ("tulu_3", []), ("peft_for_rlvr", []),
        ("acereason", ["steps=6", "prompt_sampler.order=[0]", "prompt_sampler.hard=[]"]),
        ("rl_with_cold_start", ["phases.rl.num_minibatches=1"]),
    ],
)  # fmt: skip
def test_presets_train(method, words):
    run = text_run([f"methods/{method}"], words)
    for index in range(len(run.phases)):
        run.use(index)
        run.phase_step = 0
        run.enter(index)
        metrics = steps(run)
        assert all(m["grad_norm"] > 0 for m in metrics)
    if method == "acereason":
        assert [m["acereason/max_tokens"] for m in metrics] == [3.0, 5.0]


def test_the_connector_alone_is_trained_at_the_end():
    run = vision_run(["methods/skywork_r1v3"])
    for index in range(3):
        run.use(index)
        run.phase_step = 0
        run.enter(index)
        before = {name: p.detach().clone() for name, p in run.policy.model.named_parameters()}
        metrics = steps(run, 1)
        moved = {
            run.policy.part_of(name)
            for name, p in run.policy.model.named_parameters()
            if not torch.equal(p.detach(), before[name])
        }
        assert ("critical/share" in metrics[0]) == (index == 1)
    assert moved == {"projector"}
