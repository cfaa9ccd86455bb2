"""Features of a frozen vision tower are computed once: equal bits in sampling and training, gradients of a
trained projector, a bound on memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from samples import PROMPTS, Noise, ask, groups_of, policy_of

from vlrl.methods.core.trainable import LoRA, Parts
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.policy import Policy
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Request, Sampling

FAMILIES = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "internvl", "llava_onevision", "gemma3", "smolvlm")
ONE, TWO = Noise(1), Noise(2, (112, 112))


def batch_of(policy: Policy, *prompts: Any) -> Any:
    return make_batch(
        groups_of(list(prompts) or [ask("a", (ONE, TWO)), ask("b", (ONE,)), PROMPTS["text"]]), policy.pad_id
    )


def frozen(name: str, *freeze: str, **fields: Any) -> Policy:
    policy = policy_of(name, **fields)
    Parts(freeze=freeze or ("vision", "projector"))(policy)  # type: ignore[arg-type]
    return policy


def gradients(policy: Policy, batch: Any) -> dict[str, torch.Tensor]:
    policy.model.zero_grad()
    policy.forward(batch)["logp"].sum().backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


def test_sampling_and_training_share_the_features_of_a_frozen_tower() -> None:
    policy = frozen("qwen2_5_vl")
    engine = build(Engine, "hf").attach(policy)
    requests = [
        Request(ask("a", (ONE, TWO)), Sampling(max_tokens=3), n=2),
        Request(ask("b", (ONE,)), Sampling(max_tokens=3), n=2),
    ]
    list(engine.generate(requests))
    patches = 6 * 4 + 8 * 8
    assert engine.counters["media_encoded"] == 2 and policy.counters["patches"] == patches
    policy.forward(batch_of(policy))
    list(engine.generate(requests))
    assert engine.counters["media_encoded"] == 2 and policy.counters["patches"] == patches
    policy.clear_caches()
    policy.forward(batch_of(policy))
    assert policy.counters["patches"] == 2 * patches


@pytest.mark.parametrize("freeze", [("vision", "projector"), ("vision",)])
@pytest.mark.parametrize("name", FAMILIES)
def test_kept_features_are_those_of_the_tower(name: str, freeze: tuple[str, ...]) -> None:
    """One medium a batch: the tower's products have equal shapes with and without the cache, so that results
    are equal to the last bit."""
    kept, plain = frozen(name, *freeze), frozen(name, *freeze, embeds_mb=0)
    batch = batch_of(plain, PROMPTS["image"])
    expected, expected_gradients = plain.forward(batch)["logp"], gradients(plain, batch)
    for _ in range(2):
        assert torch.equal(kept.forward(batch)["logp"], expected)
        found = gradients(kept, batch)
        assert found.keys() == expected_gradients.keys()
        assert all(torch.equal(found[name], expected_gradients[name]) for name in found)
    assert kept.counters["media_encoded"] == 1 and kept.counters["media_reused"] == 3
    trained = set(map(kept.part_of, expected_gradients))
    assert trained == {"language", *({"projector"} - set(freeze))}


def test_a_medium_has_the_same_features_whatever_is_encoded_beside_it() -> None:
    first, second = frozen("qwen2_5_vl"), frozen("qwen2_5_vl")
    for policy, prompts in (
        (first, [ask("a", (ONE, TWO))]),
        (second, [ask("b", (TWO,)), ask("a", (ONE, TWO))]),
    ):
        for prompt in prompts:
            policy.forward(batch_of(policy, prompt))
    features = first.encode(ask("a", (ONE, TWO))).features
    for one, other in zip(first.encode_media(features), second.encode_media(features)):
        assert torch.equal(one.embeds_NH, other.embeds_NH)


def test_changed_weights_are_another_tower() -> None:
    policy = frozen("qwen2_5_vl")
    batch = batch_of(policy)
    before = policy.forward(batch)["logp"]
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if policy.part_of(name) == "vision":
                parameter.add_(0.1 * torch.randn_like(parameter))
    after = policy.forward(batch)["logp"]
    assert not torch.equal(before, after)
    plain = frozen("qwen2_5_vl", embeds_mb=0)
    plain.model.load_state_dict(policy.model.state_dict())
    torch.testing.assert_close(after, plain.forward(batch)["logp"], atol=1e-5, rtol=1e-5)
    assert len(policy.params.media.cache.items) == 2, "entries of the earlier weights are dropped"


@pytest.mark.parametrize(
    "trainable", [Parts(), Parts(freeze=("language",)), LoRA(parts=("vision", "language"))]
)
def test_a_trained_tower_keeps_nothing(trainable: Any) -> None:
    policy = policy_of("qwen2_5_vl")
    trainable(policy)
    for _ in range(2):
        policy.forward(batch_of(policy))
    assert policy.counters["media_encoded"] == 4 and not policy.params.media.cache.items


def test_the_reference_of_a_trained_tower_is_kept() -> None:
    policy = policy_of("qwen2_5_vl")
    policy.keep_reference()
    with policy.reference() as reference, torch.no_grad():
        once = reference.forward(batch_of(policy))["logp"]
        assert torch.equal(once, reference.forward(batch_of(policy))["logp"])
    assert policy.counters["media_encoded"] == 2


def test_an_adapter_of_the_language_model_and_its_reference_share_features() -> None:
    policy = policy_of("qwen2_5_vl")
    LoRA(r=2)(policy)
    policy.forward(batch_of(policy))
    with policy.reference() as reference, torch.no_grad():
        reference.forward(batch_of(policy))
    assert policy.counters["media_encoded"] == policy.counters["media_reused"] == 2


def test_the_cache_is_bounded() -> None:
    policy = frozen("qwen2_5_vl")
    policy.params.media.cache.size = 40 * 64 * 4  # bytes of 40 embeddings of 64 float32 numbers
    pictures = [Noise(seed) for seed in range(9)]
    for picture in pictures:
        policy.forward(batch_of(policy, ask("a", (picture,))))
    cache = policy.params.media.cache
    assert 0 < cache.used <= cache.size and 0 < len(cache.items) < 9
