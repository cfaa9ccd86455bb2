"""Router replay: the experts that the engine chose are chosen again in training."""

import numpy as np
import pytest
import torch

from vlrl.engine.hf.engine import HF
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.policy.packing import build_layout
from vlrl.policy.routing import OWN, RoutingReplay, replay_of
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
    gate.routing = RoutingReplay(torch.tensor([[[0, 1]]], dtype=torch.int16))
    _, weights, chosen = gate(hidden)
    assert chosen.tolist() == [[0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[1 / 3, 2 / 3]]))
    gate.routing = RoutingReplay(torch.tensor([[[OWN, OWN]]], dtype=torch.int16))
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
    given = replay.given_NMK[:, 0, 0].tolist()
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
