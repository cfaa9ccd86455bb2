"""What Gemma 3n has beside the contract: layers that read the keys of others, embeddings in every layer, four
streams, sounds that all take as many tokens, and a tower of timm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from samples import Hiss, Noise, ask, given, groups_of, plain_logp, policy_of, processed

from vlrl.config import load
from vlrl.methods.core.trainable import LoRA, Parts
from vlrl.plan.setup import Assumed, picture_of, processor_of
from vlrl.plan.shape import model_config
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy, tree_attention
from vlrl.policy.sharding import model_from_state
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import MediaError

BOTH = ask("Do they fit?", (Noise(1), Noise(2, (40, 90))), audios=(Hiss(5, 2.3),))
SHARING = {"layers": 4, "std": 0.1}  # layers 2 and 3 have no keys of their own


@pytest.fixture(scope="module")
def policy() -> Policy:
    return policy_of("gemma3n", tiny=SHARING)


def gradient(policy: Policy, logp: torch.Tensor) -> torch.Tensor:
    policy.model.zero_grad()
    (logp * torch.linspace(0.5, 1.5, logp.numel()).view_as(logp)).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def test_layers_without_keys_and_recomputed_ones_are_those_of_plain_transformers(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pictures and sounds in one prompt; also long rows, and layers that are computed again."""
    layers = policy.model.model.language_model.layers
    assert [hasattr(layer.self_attn, "k_proj") for layer in layers] == [True, True, False, False]
    batch = make_batch(groups_of([BOTH, ask("How many?")]), policy.pad_id)
    plain = torch.zeros(batch.ids_BT.shape)
    for b, rollout in enumerate(batch.rollouts):
        plain[b, : len(rollout)] = plain_logp(policy, rollout)
    plain = plain * batch.loss_mask_BT
    wanted = gradient(policy, plain)
    for change in ("none", "long rows", "checkpointing"):
        if change == "long rows":
            monkeypatch.setattr(tree_attention, "MIN_ROW", 0)
        if change == "checkpointing":
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        logp = policy.forward(batch)["logp"]
        torch.testing.assert_close(logp, plain, atol=1e-5, rtol=0)
        assert (gradient(policy, logp) - wanted).norm() / wanted.norm() < 1e-4, change
    policy.model.gradient_checkpointing_disable()


@pytest.mark.parametrize(
    "name",
    [
        "embed_tokens_per_layer.weight", "layers.1.self_attn.k_proj.weight",
        "layers.3.laurel.linear_left.weight", "layers.3.altup.prediction_coefs.weight",
        "embed_vision.embedding.weight", "embed_audio.embedding.weight",
    ],
)  # fmt: skip
def test_every_mechanism_takes_part(policy: Policy, name: str) -> None:
    batch = make_batch(groups_of([BOTH]), policy.pad_id)
    (weight,) = (p for n, p in policy.model.named_parameters() if n.endswith(name))
    before, kept = policy.forward(batch)["logp"].detach(), weight.data.clone()
    weight.data += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    moved = (policy.forward(batch)["logp"].detach() - before).abs().max()
    weight.data = kept
    assert moved > 1e-3
    torch.testing.assert_close(policy.forward(batch)["logp"].detach(), before, atol=0, rtol=0)


@pytest.mark.parametrize("seconds", [0.05, 0.5, 2.31])
def test_a_sounds_frames_and_embeddings_are_those_of_the_processor_and_the_model(
    policy: Policy, seconds: float
) -> None:
    prompt = ask("What?", audios=(Hiss(7, seconds),))
    encoded, own = policy.encode(prompt), processed(policy, prompt)
    (feature,) = encoded.features
    for name, tensor in feature.tensors.items():
        torch.testing.assert_close(tensor, own[name][0], atol=1e-5, rtol=0)
    assert encoded.ids == own["input_ids"][0].tolist() and encoded.types.count(3) == 16 == feature.num_embeds
    core, seen = policy.model.model, []
    hook = core.language_model.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        (ours,) = policy.family.encode_media(policy.model, [feature])
        core(**given(policy, own))
    hook.remove()
    places = torch.tensor(encoded.types) == 3
    torch.testing.assert_close(ours.embeds_NH, seen[0][0, places], atol=1e-5, rtol=0)


def test_a_sound_that_is_too_long_or_too_short_is_refused_and_never_cut(policy: Policy) -> None:
    with pytest.raises(MediaError, match=r"a sound of 3.0 s; the tower hears up to 3 s: cut it into parts"):
        policy.encode(ask("What?", audios=(Hiss(1, 3.0),)))  # 16 embeddings of 160 ms: 2.56 s
    with pytest.raises(MediaError, match="a sound of 20 ms is too short to be heard; give 50 ms"):
        policy.encode(ask("What?", audios=(Hiss(1, 0.02),)))


def test_adapters_act_in_training_as_in_sampling() -> None:
    """transformers reads the weight of `correction_coefs` in training, past an adapter on it."""
    policy = policy_of("gemma3n", tiny={"std": 0.1})
    groups = LoRA(r=4, targets="")(policy)
    adapted = [name for name, _ in policy.model.named_parameters() if "lora_B" in name]
    assert any("altup.prediction_coefs" in name for name in adapted)
    assert not any("correction_coefs" in name for name in adapted)
    for parameter in groups[0]["params"]:
        parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    batch = make_batch(groups_of([BOTH]), policy.pad_id)
    trained = policy.forward(batch)["logp"].detach()
    with torch.no_grad():
        torch.testing.assert_close(policy.forward(batch)["logp"], trained, atol=1e-5, rtol=0)
        (altup,) = (m for name, m in policy.model.named_modules() if name.endswith("layers.0.altup"))
        streams, active = torch.randn(4, 1, 3, 64), torch.randn(1, 3, 64)
        in_training, in_sampling = (altup.train(mode).correct(streams, active) for mode in (True, False))
        torch.testing.assert_close(in_training, in_sampling, atol=1e-6, rtol=0)


def test_a_frozen_tower_sees_and_hears_once_and_its_projector_is_trained() -> None:
    policy = policy_of("gemma3n")
    batch = make_batch(groups_of([BOTH]), policy.pad_id)
    free = policy.forward(batch)["logp"]
    wanted = torch.autograd.grad(free.sum(), list(policy.model.model.embed_audio.parameters()))
    Parts(freeze=("vision",))(policy)
    passes = []  # through timm's tower: both pictures in their first forward, each alone
    hook = policy.model.model.vision_tower.timm_model.conv_stem.register_forward_pre_hook(
        lambda *_: passes.append(1)
    )
    counters = policy.params.net.media.counters
    counters.clear()
    for _ in range(2):
        logp = policy.forward(batch)["logp"]
        torch.testing.assert_close(logp, free.detach(), atol=1e-5, rtol=0)
        found = torch.autograd.grad(logp.sum(), list(policy.model.model.embed_audio.parameters()))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    hook.remove()
    assert counters["media_encoded"] == counters["media_reused"] == 3
    assert len(passes) == 2


def test_a_saved_folder_tells_its_tower_again_and_again(tmp_path: Path) -> None:
    policy = policy_of("gemma3n")
    wanted = policy.model.config.vision_config.model_args
    assert wanted["block_args"][0][0]["block_type"] == "er"
    for turn in ("one", "two"):
        policy.save(tmp_path / turn)
        held = json.loads((tmp_path / turn / "config.json").read_text(encoding="utf-8"))
        assert held["vision_config"]["model_args"] == wanted
        policy = policy_of("gemma3n", model=str(tmp_path / turn), tiny=None)
    model_from_state(policy.model.state_dict(), policy.model, "sdpa")  # what FSDP2 gathers
    assert policy.model.config.vision_config.model_args == wanted


def test_the_planner_counts_a_picture_of_the_release() -> None:
    """A tower of 294 million weights, with and without recomputation."""
    family = build(Family, load(["models/gemma3n_e2b"]).tree["policy"])
    cost = picture_of(family, Assumed(width=640, height=480))
    assert (cost.tokens, cost.patches) == (256, 0)
    wanted = family.picture_cost(processor_of(family), model_config(family), 100, 900)
    assert cost == wanted, "pictures of one size"
    assert cost.flops == pytest.approx(0.8715e12, rel=1e-3) and 0 < 4 * cost.saved_inputs < cost.saved


def test_without_timm_it_is_refused_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlrl.policy.families.gemma3n.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^policy: 'gemma3n' needs timm .*: pip install .*\[timm\].*gemma4"
    ):
        build(Family, {"name": "gemma3n", "tiny": {}}, "policy")
