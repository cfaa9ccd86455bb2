"""Routers: the experts that the engine chose are chosen again in training, and their load is kept even."""

import json

import numpy as np
import pytest
import torch
from samples import PROMPTS, policy_of

from vlrl import train
from vlrl.config import load
from vlrl.engine.hf.engine import HF
from vlrl.methods.core.aux_tensor import ExpertLoad
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.policy.packing import build_layout
from vlrl.policy.routing import OWN, Routing, expert_balance, replay_of
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Prompt, Request, Rollout, Row, Sampling

TINY = {"layers": 4, "hidden": 64, "experts": 8, "std": 0.1, "seed": 3}


def make_policy(kind="qwen3_moe", **options):
    spec = {"name": "text", "tiny": {**TINY, "kind": kind}, "router_replay": True, **options}
    policy = Policy(build(Family, spec))
    policy.model.requires_grad_(True)
    return policy


def sampled(policy, groups=2, n=4, tokens=24):
    """Groups of rollouts of engine `hf`."""
    engine = HF().attach(policy)
    out = []
    for g in range(groups):
        prompt = Prompt(
            Row(f"r{g}", "q"), ({"role": "user", "content": f"Count to {g} and back. " * (g + 1)},)
        )
        request = Request(prompt, Sampling(max_tokens=tokens), n=n, seed=g)
        rollouts = [
            Rollout(prompt, list(c.ids), text=c.text, logp=list(c.logp), routing=c.routing)
            for c in sorted(engine.generate([request]), key=lambda c: c.index)
        ]
        out.append(Group(prompt, rollouts, id=str(g)))
    return out


def logp_of(policy, groups):
    return policy.forward(make_batch(groups, policy.pad_id, policy.device))["logp"]


def kl_of(policy, groups):
    """The k3 estimate of KL(engine || trainer) in nats a token, `engine/kl` of the log: mean(e^d - 1 - d)."""
    with torch.no_grad():
        logp_BT = logp_of(policy, groups)
    rollouts = [rollout for group in groups for rollout in group]
    gaps = [torch.tensor(r.logp) - logp_BT[b, : len(r)].float() for b, r in enumerate(rollouts)]
    gap_N = torch.cat(gaps).double()
    return (torch.expm1(-gap_N) + gap_N).mean().item()


def without_routing(groups):
    return [
        Group(g.prompt, [Rollout(r.prompt, r.ids, r.text, r.logp) for r in g.rollouts], id=g.id)
        for g in groups
    ]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3_next"])
def test_a_record_is_complete_and_in_float32_changes_nothing(kind, layout):
    policy = make_policy(kind, layout=layout)
    groups = sampled(policy)
    for group in groups:
        prompt = policy.encode(group.prompt)
        for rollout in group:
            layers = policy.model.config.num_hidden_layers
            assert rollout.routing.shape == (len(prompt) + len(rollout) - 1, layers, 4)
            assert rollout.routing.min() >= 0 and rollout.routing.max() < 8
            assert all(len(set(place)) == 4 for place in rollout.routing[:, 0].tolist()), (
                "four different experts"
            )
    assert kl_of(policy, groups) < 1e-10
    assert kl_of(policy, without_routing(groups)) < 1e-10


@pytest.mark.parametrize("seed", [3, 5])
def test_replay_closes_more_than_half_of_the_gap_of_bfloat16(seed):
    policy = make_policy(dtype="bfloat16", tiny={**TINY, "kind": "qwen3_moe", "seed": seed})
    groups = sampled(policy, groups=6, n=8, tokens=32)
    replayed, own = kl_of(policy, groups), kl_of(policy, without_routing(groups))
    assert own > 5e-5 and replayed < own / 2, (replayed, own)


def test_given_experts_are_used_and_the_router_still_learns():
    """With another choice the log-probs differ; the router gets a gradient through the given experts."""
    policy = make_policy()
    groups = sampled(policy, groups=1, n=1)
    (rollout,) = groups[0].rollouts
    own = logp_of(policy, groups).detach()
    rollout.routing = (rollout.routing + 1) % 8
    other = logp_of(policy, groups)
    assert (other.detach() - own).abs().max() > 0.01
    other.sum().backward()
    gates = [layer.mlp.gate for layer in policy.model.model.layers]
    assert all(gate.weight.grad.abs().sum() > 0 for gate in gates)


def test_layers_that_are_recomputed_take_the_same_experts():
    """Gradients with and without checkpointing are equal, also where another forward came in between."""
    grads = []
    for checkpointing in (False, True):
        policy = make_policy(checkpointing=checkpointing)
        groups = sampled(policy, groups=1, n=2)
        for rollout in groups[0].rollouts:
            rollout.routing = (rollout.routing + 1) % 8
        logp = logp_of(policy, groups)
        with torch.no_grad():
            logp_of(policy, without_routing(groups))
        policy.model.train()
        logp.sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-5, rtol=1e-4)


def test_the_formula_by_hand():
    """p = softmax(0, ln 2, ln 3) = (1, 2, 3) / 6; the given experts 0 and 1 weigh 1/3 and 2/3."""
    policy = make_policy(tiny={**TINY, "kind": "qwen3_moe", "hidden": 32, "heads": 2, "experts": 4})
    gate = policy.model.model.layers[0].mlp.gate
    gate.top_k = 2
    with torch.no_grad():
        gate.weight.zero_()
        gate.weight[:, 0] = torch.tensor([1.0, 2.0, 3.0, 1e-30]).log()
    hidden = torch.zeros(1, 32)
    hidden[0, 0] = 1.0
    gate.routing = Routing(torch.tensor([[[0, 1]]], dtype=torch.int16))
    _, weights, chosen = gate(hidden)
    assert chosen.tolist() == [[0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[1 / 3, 2 / 3]]))
    gate.routing = Routing(torch.tensor([[[OWN, OWN]]], dtype=torch.int16))
    _, weights, chosen = gate(hidden)
    assert chosen.tolist() == [[2, 1]]
    torch.testing.assert_close(weights, torch.tensor([[3 / 5, 2 / 5]]))


def test_a_layout_takes_each_nodes_experts_from_a_completion_through_it():
    """A prompt of 2 tokens and completions (5, 6, 7) and (5, 8): the last token of each is no input."""
    policy = make_policy()
    prompt = policy.encode(Prompt(Row("r", "q"), ({"role": "user", "content": "hi"},)))
    layout = build_layout([prompt], [0, 0], [[5, 6, 7], [9, 8]], [[0], [0]], 3, 0, packed=True)
    base = np.arange(len(prompt), dtype=np.int16)[:, None, None]
    one = np.concatenate([base, [[[50]], [[60]]]]).astype(np.int16)
    replay = replay_of(layout, [one, None])
    given = replay[:, 0, 0].tolist()
    assert given[: len(prompt)] == list(range(len(prompt)))
    assert sorted(given[len(prompt) :]) == [OWN, 50, 60]
    assert replay_of(layout, [None, None]) is None


def test_a_record_goes_through_plain_values():
    policy = make_policy()
    ((rollout, *_),) = [group.rollouts for group in sampled(policy, groups=1, n=1, tokens=4)]
    again = Rollout.from_plain(rollout.to_plain(), rollout.prompt)
    assert again.routing.dtype == np.int16 and (again.routing == rollout.routing).all()


def test_models_without_such_routers_and_drafts_are_refused():
    with pytest.raises(ConfigError, match="policy.router_replay: 'qwen3' has no routers"):
        make_policy("qwen3")
    with pytest.raises(ConfigError, match="engine.lookup_tokens: 4 drafts"):
        HF(lookup_tokens=4).attach(make_policy())


def test_the_balance_by_hand():
    """Two real tokens of 4 experts and K = 2: loads f = (1, 1/2, 1/2, 0), P the mean of the rows' halves."""
    probs_NE = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.1, 0.3, 0.1], [0.25, 0.25, 0.25, 0.25]])
    chosen_NK = torch.tensor([[0, 1], [0, 2], [3, 3]])
    loss, busiest = expert_balance(probs_NE, chosen_NK, torch.tensor([True, True, False])).tolist()
    assert loss == pytest.approx(4 / 2 * (1 * 0.45 + 0.5 * 0.2 + 0.5 * 0.25))
    assert busiest == pytest.approx(4 / 2 * 1)
    even_NE = torch.full((2, 4), 0.25)
    assert expert_balance(even_NE, torch.tensor([[0, 1], [2, 3]]), torch.ones(2)).tolist() == [1, 1]


def test_the_balance_is_that_of_transformers():
    """Of one layer, times K."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    logits_NE = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    real_N = torch.arange(50) < 40
    theirs = load_balancing_loss_func((logits_NE,), 8, 2, real_N[None])
    probs_NE = logits_NE.softmax(-1)
    ours, _ = expert_balance(probs_NE, probs_NE.topk(2).indices, real_N)
    torch.testing.assert_close(2 * ours, theirs)


def balance_of(policy, groups):
    policy.read_routers("loss term router_balance")
    batch = make_batch(groups, policy.pad_id, policy.device)
    out = policy.forward(batch, [ExpertLoad()])
    return out["expert_load"][0, 0]


def test_the_balance_leaves_padding_out_and_recomputed_layers_give_its_gradient():
    values, grads = [], []
    for options in ({"layout": "packed"}, {"layout": "padded"}, {"checkpointing": True}):
        policy = make_policy(router_replay=False, **options)
        groups = [Group(g.prompt, g.rollouts[:1], id=g.id) for g in sampled(policy)]
        policy.model.train()
        loss, busiest = balance_of(policy, groups)
        loss.backward()
        values.append((loss.item(), busiest.item()))
        gates = [layer.mlp.gate.weight.grad for layer in policy.model.model.layers]
        assert all(grad.abs().sum() > 0 for grad in gates)
        grads.append(torch.cat([grad.flatten() for grad in gates]))
    assert values[0] == pytest.approx(values[1]) and values[0] == pytest.approx(values[2])
    for other in grads[1:]:
        torch.testing.assert_close(grads[0], other, atol=1e-6, rtol=1e-4)


def test_a_model_without_routers_has_no_balance():
    policy = make_policy("qwen3", router_replay=False)
    with pytest.raises(ConfigError, match="router_balance: 'qwen3' has no routers"):
        balance_of(policy, sampled(policy, groups=1, n=1, tokens=2))


def test_training_with_the_balance_evens_the_load(tmp_path):
    """Through the whole pipeline, beside a run without and one with the sign turned round."""
    on, off, reversed_ = (
        [line["router/balance"] for line in train_balanced(tmp_path / str(coef), coef)]
        for coef in (1.0, 0.0, -1.0)
    )
    assert on[0] == off[0] == reversed_[0]
    assert sum(on[3:]) + 0.3 < sum(off[3:]) < sum(reversed_[3:]) - 0.3, (on, off, reversed_)


def train_balanced(folder, coef):
    policy = {
        "name": "text",
        "tiny": {"kind": "qwen3_moe", "layers": 1, "hidden": 32, "experts": 8, "std": 0.5},
    }
    config = load(
        ["base/rl", "methods/grpo"],
        [
            f"policy={json.dumps(policy)}",
            "data={train: {sums: {name: lab_arithmetic, count: 4}}}",
            "rewards={sums: {name: numeric}}",
            "engine=hf",
            f"loss_terms={{even: {{name: router_balance, coef: {coef}}}}}",
            "sampling={name: plain, max_tokens: 8}",
            "optimizer={lr: 3.0e-3}",
            "steps=6",
            "group_size=2",
            "prompts_per_step=4",
            "threads=1",
            f"output={folder}",
        ],
    )
    train(config)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["qwen3_vl_moe", "qwen3_5_moe"])
def test_a_mixture_that_sees_replays_its_experts(name):
    """The record has the places of the picture too."""
    policy = policy_of(name, router_replay=True, tiny={"experts": 8})
    engine = HF().attach(policy)
    request = Request(PROMPTS["images"], Sampling(max_tokens=6), n=2, seed=0)
    rollouts = [
        Rollout(request.prompt, list(c.ids), text=c.text, logp=list(c.logp), routing=c.routing)
        for c in engine.generate([request])
    ]
    prompt = policy.encode(request.prompt)
    assert all(len(r.routing) == len(prompt) + len(r) - 1 for r in rollouts)
    groups = [Group(request.prompt, rollouts, id="0")]
    assert kl_of(policy, groups) < 1e-9
    own = logp_of(policy, groups).detach()
    for rollout in rollouts:
        rollout.routing = (rollout.routing + 1) % 8
    assert (logp_of(policy, groups) - own).abs().max() > 1e-4
