"""The in-process engine against transformers' own generation, and against the policy's own log-probs."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from run_kit import View

from vlrl.engine.hf.engine import HF
from vlrl.trainer.ranks.collectives import params_sharded
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Rollout


def mixed_prompts(tools):
    pictures = [tools.Noise(i, (56 + 28 * (i % 3), 56)) for i in range(4)]
    kinds = [
        lambda i: (),
        lambda i: (pictures[i // 4 % 4],),
        lambda i: (pictures[i // 4 % 4], pictures[(i // 4 + 1) % 4]),
        lambda i: (tools.Noise(i // 4 % 2, (112, 112), frames=4),),
    ]
    return [tools.prompt(f"Question {i // 2} " + "and so on " * (i % 3), *kinds[i % 4](i)) for i in range(32)]


def by_generate(engine, request):
    """The ids of model.generate, one prompt at a time."""
    lm, encoded = engine.lm, engine.lm.encode(request.prompt)
    tensors = {}
    for feature in encoded.features:
        for name, value in feature.tensors.items():
            tensors.setdefault(name, []).append(torch.as_tensor(value))
    out = lm.model.generate(
        input_ids=torch.tensor([encoded.ids]), attention_mask=torch.ones(1, len(encoded), dtype=torch.long),
        mm_token_type_ids=torch.tensor([encoded.types]), do_sample=False,
        max_new_tokens=request.sampling.max_tokens,
        suppress_tokens=list(lm.forbidden_ids), eos_token_id=[*lm.eos_ids, *request.sampling.stop_ids],
        pad_token_id=lm.pad_id,
        **{name: torch.cat(values) for name, values in tensors.items()},
    )  # fmt: skip
    return out[0, len(encoded) :].tolist()


@pytest.mark.parametrize("budget", [100_000, 900])
def test_greedy_equals_generate_on_mixed_requests(policy, tools, budget):
    engine = HF(token_budget=budget, prefill_tokens=700).attach(policy)
    prompts = mixed_prompts(tools)
    stops = tuple(range(0, 300, 8))  # so that sequences end early, at different times
    requests = [
        tools.request(p, temperature=0.0, max_tokens=3 + 7 * (i % 4), stop_ids=stops if i % 2 else (), tag=i)
        for i, p in enumerate(prompts * 2)
    ]
    found = {c.request.tag: c for c in engine.generate(requests)}
    assert sorted(found) == list(range(64))
    expected = [by_generate(engine, request) for request in requests[:32]]
    for i, completion in found.items():
        assert completion.ids == expected[i % 32], i
    finishes = [c.finish for c in found.values()]
    assert {"stop", "length"} == set(finishes) and min(finishes.count(f) for f in ("stop", "length")) > 8
    assert len({len(c.ids) for c in found.values()}) > 5, "ragged"
    assert engine.counters["media_encoded"] == 4 + 2, "each picture and video once"
    if budget == 100_000:
        assert engine.counters["prompts_prefilled"] == 32, "each prompt once"


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_text_only_models(kind, tools):
    text_policy = tools.policy("text", kind=kind)
    engine = HF().attach(text_policy)
    requests = [
        tools.request(tools.prompt("Add " + "1 + " * i), temperature=0.0, max_tokens=8, tag=i)
        for i in range(4)
    ]
    for completion in engine.generate(requests):
        encoded = engine.lm.encode(completion.request.prompt)
        out = text_policy.model.generate(
            input_ids=torch.tensor([encoded.ids]), attention_mask=torch.ones(1, len(encoded),
                dtype=torch.long), do_sample=False,
            max_new_tokens=8, suppress_tokens=list(engine.lm.forbidden_ids) or None,
            eos_token_id=list(engine.lm.eos_ids),
        )  # fmt: skip
        assert out[0, len(encoded) :].tolist() == completion.ids


def test_samples_do_not_depend_on_the_batch(policy, tools):
    picture = tools.Noise(0)
    a, b = tools.prompt("a", picture), tools.prompt("b " * 20)
    alone = {
        c.index: c
        for c in HF()
        .attach(policy)
        .generate([tools.request(a, n=5, seed=11, max_tokens=12, temperature=1.3, top_p=0.95)])
    }
    crowd = [
        tools.request(b, n=6, seed=3, max_tokens=5),
        tools.request(a, n=5, seed=11, max_tokens=12, temperature=1.3, top_p=0.95, tag="a"),
    ]
    engine = HF(token_budget=300).attach(policy)
    together = {c.index: c for c in engine.generate(crowd) if c.request.tag == "a"}
    assert {i: c.ids for i, c in alone.items()} == {i: c.ids for i, c in together.items()}
    assert len({tuple(c.ids) for c in alone.values()}) == 5, "samples of one request differ"
    for i, c in alone.items():
        torch.testing.assert_close(torch.tensor(c.logp), torch.tensor(together[i].logp), atol=1e-4, rtol=0)


def trainer_logp(policy, completion, temperature):
    rollout = Rollout(prompt=completion.request.prompt, ids=completion.ids, temperature=temperature)
    batch = make_batch([Group(prompt=rollout.prompt, rollouts=[rollout])], policy.pad_id)
    with torch.no_grad():
        return policy.forward(batch)["logp"][0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_logp_is_the_trainers(engine, policy, tools, temperature):
    prompt = tools.prompt("What is it?", tools.Noise(1), tools.Noise(2))
    for c in engine.generate([tools.request(prompt, n=3, max_tokens=10, temperature=temperature)]):
        assert policy.forbidden_ids and not set(c.ids) & set(policy.forbidden_ids)
        torch.testing.assert_close(
            torch.tensor(c.logp), trainer_logp(policy, c, temperature), atol=1e-4, rtol=0
        )
        torch.testing.assert_close(
            torch.tensor(engine.score(prompt, c.ids)), trainer_logp(policy, c, 1.0), atol=1e-4, rtol=0
        )


def test_prefix_continues(engine, tools):
    prompt = tools.prompt("Go on", tools.Noise(3))
    (whole,) = engine.generate([tools.request(prompt, temperature=0.0, max_tokens=12)])
    (rest,) = engine.generate(
        [tools.request(prompt, temperature=0.0, max_tokens=12, prefix_ids=whole.ids[:5])]
    )
    assert rest.ids == whole.ids
    (sampled,) = engine.generate([tools.request(prompt, seed=4, max_tokens=12)])
    (again,) = engine.generate([tools.request(prompt, seed=4, max_tokens=12, prefix_ids=sampled.ids[:4])])
    assert again.ids == sampled.ids, "position p draws from number p of the stream, with or without a prefix"
    torch.testing.assert_close(
        torch.tensor(again.logp[4:]), torch.tensor(sampled.logp[4:]), atol=1e-4, rtol=0
    )
    assert engine.score(prompt, sampled.ids)[:4] == pytest.approx(again.logp[:4], abs=1e-4)
    (full,) = engine.generate([tools.request(prompt, max_tokens=4, prefix_ids=sampled.ids[:4])])
    assert (full.ids, full.finish) == (sampled.ids[:4], "length")


def test_a_prefix_whose_log_probs_nobody_reads(engine, tools):
    """The same tokens and log-probs behind it, 0 for its own; beside a request for the same prefix that does
    read them."""
    prompt = tools.prompt("Go on", tools.Noise(3))
    (whole,) = engine.generate([tools.request(prompt, seed=4, max_tokens=12)])
    scored = tools.request(prompt, seed=4, max_tokens=12, prefix_ids=whole.ids[:5], tag="scored")
    unscored = dataclasses.replace(scored, score_prefix=False, tag="unscored")
    for requests in ([scored, unscored], [unscored, scored], [unscored]):
        for completion in engine.generate(requests):
            assert completion.ids == whole.ids
            assert completion.logp[5:] == pytest.approx(whole.logp[5:], abs=1e-4)
            assert completion.logp[:5] == pytest.approx(
                whole.logp[:5] if completion.request.tag == "scored" else [0.0] * 5, abs=1e-4
            )


def test_weights_may_change_during_a_call(tools):
    policy = tools.policy("qwen2_5_vl")
    engine = HF().attach(policy)
    prompt = tools.prompt("Long", tools.Noise(0))
    requests = [
        tools.request(prompt, temperature=0.0, max_tokens=3, tag="short"),
        tools.request(prompt, temperature=0.0, max_tokens=9, tag="long"),
    ]
    stream = engine.generate(requests)
    short = next(stream)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    policy.version += 1
    (long,) = stream
    assert short.version == 0 and long.version == [0] * 3 + [1] * 6
    (fresh,) = (
        HF()
        .attach(policy)
        .generate([tools.request(prompt, temperature=0.0, max_tokens=9, prefix_ids=long.ids[:3])])
    )
    assert fresh.ids == long.ids, (
        "the rest is what the new weights say after the tokens that the old ones drew"
    )
    assert engine.counters["interrupted"] == 1


def test_sliding_windows_and_bidirectional_images(tools):
    policy = tools.policy("gemma3")  # windows of 8 tokens in every other layer
    engine = HF(token_budget=400).attach(policy)
    prompts = [
        tools.prompt("What is in it? " * (1 + i), *[tools.Noise(k) for k in range(i % 3)]) for i in range(5)
    ]
    found = {
        c.request.tag: c
        for c in engine.generate(
            [tools.request(p, temperature=0.0, max_tokens=20, tag=i) for i, p in enumerate(prompts)]
        )
    }
    assert len(found) == 5 and max(len(c.ids) for c in found.values()) > 8
    for completion in found.values():
        torch.testing.assert_close(
            torch.tensor(completion.logp), trainer_logp(policy, completion, 1.0), atol=1e-4, rtol=0
        )
        scored = torch.tensor(engine.score(completion.request.prompt, completion.ids))
        torch.testing.assert_close(scored, trainer_logp(policy, completion, 1.0), atol=1e-4, rtol=0)
        (again,) = engine.generate(
            [
                tools.request(
                    completion.request.prompt, temperature=0.0, max_tokens=20, prefix_ids=completion.ids[:9]
                )
            ]
        )
        assert again.ids == completion.ids, "a prefill and a decode see the same window"


def test_metrics_count_the_last_step(engine, tools):
    list(engine.generate([tools.request(tools.prompt("a"), n=2, max_tokens=3, temperature=0.0)]))
    engine.end_step(None)
    first = engine.metrics()
    assert engine.metrics() == first, "reading changes nothing"
    engine.end_step(None)
    second = engine.metrics()
    assert (
        first["engine/completions"] == (2, 0)
        and first["engine/prompts_prefilled"] == (1, 0)
        and second["engine/completions"] == (0, 0)
    )
    rows, decoded = first["engine/rows_per_step"]
    assert rows == 2 * decoded > 0
    with engine.uncounted():
        list(engine.generate([tools.request(tools.prompt("b"), max_tokens=3, temperature=0.0)]))
    engine.end_step(None)
    assert engine.metrics()["engine/completions"] == (0, 0), "held-out answers are in no step"


@pytest.mark.parametrize(
    ("kind", "stage", "warned"),
    [
        ("NO", 0, False),
        ("MULTI_GPU", 0, False),
        ("DEEPSPEED", 2, False),
        ("DEEPSPEED", 3, True),
        ("FSDP", 0, True),
    ],
)
def test_gathering_sharded_weights_warns_with_its_size(text_policy, monkeypatch, kind, stage, warned):
    state = SimpleNamespace(
        deepspeed_plugin=SimpleNamespace(zero_stage=stage) if kind == "DEEPSPEED" else None
    )
    accelerator = SimpleNamespace(state=state, distributed_type=SimpleNamespace(value=kind), num_processes=4)
    said = []
    weights = [torch.nn.Parameter(torch.empty(2**20, 192, device="meta"))]  # 0.75 GiB in float32
    policy = SimpleNamespace(
        model=SimpleNamespace(parameters=lambda: weights, config=text_policy.model.config),
        tokenizer=None,
        family=None,
    )
    monkeypatch.setattr(HF, "attach", lambda self, policy: self)
    HF().setup(View(policy=policy, params_sharded=params_sharded(accelerator), ranks=4, warn=said.append))
    assert bool(said) == warned and all("4 processes" in line and "0.75 GiB" in line for line in said)


def test_scores_with_shared_prompts_are_those_of_each_pair_alone(policy, tools):
    """What completions of a prompt share is computed once where no conversation is kept; with small batches,
    too."""
    one, two = (
        tools.prompt("What is it?", tools.Noise(1)),
        tools.prompt("And?", tools.Noise(2), tools.Noise(1)),
    )
    pairs = [(one, [5, 6, 7]), (two, [9]), (one, [5, 6, 8, 9, 10]), (two, [9, 4])]
    alone = HF().attach(policy)
    expected = [alone.score(prompt, ids) for prompt, ids in pairs]
    for most in (1, 32768):
        shared = HF(conversation_tokens=0, prefill_tokens=most).attach(policy)
        found = shared.score_all([*pairs, (one, [])])
        assert found.pop() == []
        for logp, right in zip(found, expected, strict=True):
            assert logp == pytest.approx(right, abs=1e-5)
        assert shared.counters["prompts_prefilled"] == 2 and shared.counters["media_encoded"] <= 2
        assert shared.counters["prefill_tokens"] < alone.counters["prefill_tokens"]
