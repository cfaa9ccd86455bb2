"""Families whose names or pictures vLLM has otherwise than transformers: the names are the releases', the
pictures are refused. Experts have names of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import Noise, make_policy, make_prompt
from safetensors import safe_open

from benchmarks.true_shapes import family_of, variant
from vlrl.engine.vllm.common import check_heads, normalises_alike
from vlrl.engine.vllm.inprocess import VLLM
from vlrl.engine.vllm.prompts import check_pictures, prompt_ids
from vlrl.engine.vllm.sharing import base_weights
from vlrl.engine.vllm.weights import named_weights
from vlrl.methods.core.trainable import LoRA
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Request, Rollout, Sampling

NESTED = ("gemma3", "llava_onevision")  # transformers 5 drops the level `vision_model` of their towers
ONE, TWO = (Noise(1),), (Noise(1), Noise(2))


@pytest.mark.parametrize("name", NESTED)
def test_towers_have_the_releases_names(name: str, tmp_path: Path) -> None:
    policy = make_policy(name, layers=1)
    sent = dict(named_weights(policy.model))
    tower = [key for key in sent if key.startswith("model.vision_tower.")]
    assert tower and all(key.startswith("model.vision_tower.vision_model.") for key in tower)
    assert {key for key, _ in base_weights(policy.model)} == set(sent)
    policy.save(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = [key for key in file.keys() if key.startswith("vision_tower.")]  # noqa: SIM118 (no mapping)
    assert sorted(f"model.{key}" for key in saved) == sorted(tower)
    again = Policy(build(Family, {"name": name, "model": str(tmp_path)}))
    assert {key: value.shape for key, value in named_weights(again.model)} == {
        key: value.shape for key, value in sent.items()
    }
    assert all(torch.equal(value, sent[key]) for key, value in named_weights(again.model))


def test_so_they_have_under_an_adapter() -> None:
    policy = make_policy("gemma3", layers=1)
    names = {key for key, _ in named_weights(policy.model)}
    LoRA(r=2)(policy)
    assert {key for key, _ in named_weights(policy.model)} == names


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl", "smolvlm"])
def test_other_names_stay(name: str) -> None:
    policy = make_policy(name, layers=1)
    tied = set(policy.model.all_tied_weights_keys)
    assert {key for key, _ in named_weights(policy.model)} == {
        key for key, _ in policy.model.named_parameters()
    } - tied


def test_pictures_that_vllm_shows_otherwise_are_refused() -> None:
    llava, gemma, qwen = (family_of(model) for model in ("llava_onevision_7b", "gemma3_4b", "qwen2_5_vl_3b"))
    with pytest.raises(ConfigError, match="shows 2 images.*engine 'hf', or rows with one image"):
        check_pictures(llava, make_prompt("Q", *TWO), True)
    with pytest.raises(ConfigError, match="CPU build.*engine 'hf', or vLLM on a GPU"):
        check_pictures(gemma, make_prompt("Q", *ONE), False)
    check_pictures(llava, make_prompt("Q", *ONE), False)
    check_pictures(gemma, make_prompt("Q"), False)
    check_pictures(gemma, make_prompt("Q", *TWO), True)
    check_pictures(variant(gemma, bidirectional_images=False), make_prompt("Q", *ONE), False)
    check_pictures(qwen, make_prompt("Q", *TWO), False)


def test_videos_that_vllm_does_not_take_are_refused() -> None:
    with pytest.raises(ConfigError, match="shows a video, and vLLM 0.32 shows this family no videos.*'hf'"):
        check_pictures(family_of("smolvlm2_2b"), make_prompt("Q", Noise(1, frames=4)), True)
    check_pictures(family_of("qwen2_5_vl_3b"), make_prompt("Q", Noise(1, frames=4)), False)


@pytest.mark.parametrize(
    ("name", "alike"), [("qwen3_vl", False), ("qwen2_5_vl", True), ("gemma3", True), ("text", True)]
)
def test_frames_that_are_normalised_otherwise_than_pictures_are_so_in_vllm(name: str, alike: bool) -> None:
    policy = make_policy(name, layers=1)
    assert normalises_alike(policy.processor) is alike
    arguments = VLLM().common_arguments(policy)
    assert arguments.get("mm_device_do_normalize", True) is alike


def test_the_prompts_of_both_engines_are_checked() -> None:
    with pytest.raises(ConfigError, match="shows 2 images"):
        prompt_ids(make_policy("llava_onevision", layers=1), make_prompt("Q", *TWO))


def test_each_expert_has_a_name_and_its_adapter_is_merged() -> None:
    policy = mixture()
    experts = policy.model.model.language_model.layers[0].mlp.experts
    gate, up = experts.gate_up_proj[1].detach().chunk(2)
    down = experts.down_proj[1].detach()
    sent = dict(named_weights(policy.model))
    place = "model.language_model.layers.0.mlp.experts.1"
    for part, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
        torch.testing.assert_close(sent[f"{place}.{part}.weight"], weight)
    LoRA(r=2, experts=True)(policy)
    adapter = {name: p for name, p in policy.model.named_parameters() if ".0.mlp.experts." in name}
    with torch.no_grad():
        for name, parameter in adapter.items():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    again = dict(named_weights(policy.model))
    assert set(again) == set(sent)
    moved = {name for name, weight in again.items() if not torch.equal(weight, sent[name])}
    assert moved == {name for name in sent if ".layers.0.mlp.experts." in name}
    merged = policy.model.merge_and_unload()
    experts = merged.model.language_model.layers[0].mlp.experts
    torch.testing.assert_close(again[f"{place}.down_proj.weight"], experts.down_proj[1].detach())


def mixture() -> Policy:
    tiny = {"hidden": 64, "heads": 2, "kv_heads": 1, "layers": 1, "intermediate": 128, "std": 0.1}
    return Policy(build(Family, {"name": "qwen3_vl_moe", "tiny": tiny}))


@pytest.mark.vllm
def test_a_mixture_has_the_trainers_log_probs_before_and_after_an_update() -> None:
    """vLLM 0.32 loads the experts' matrices as they are at first, and for its kernel at a sync alone."""
    policy = mixture()
    engine = VLLM(options={"max_num_seqs": 8, "skip_mm_profiling": True}).attach(policy)
    try:
        assert gap(policy, engine) < 1e-4
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if ".experts." in name:
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        policy.version += 1
        assert gap(policy, engine) > 0.01
        engine.sync(policy)
        assert gap(policy, engine) < 1e-4
    finally:
        engine.close()


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl", "llava_onevision", "glm4v"]
)
def test_clips_have_the_trainers_log_probs(name: str) -> None:
    tiny = {"hidden": 64, "heads": 2, "kv_heads": 1, "layers": 2, "intermediate": 128, "std": 0.2}
    policy = Policy(build(Family, {"name": name, "tiny": tiny}))
    engine = VLLM(options={"max_num_seqs": 8, "skip_mm_profiling": True}).attach(policy)
    try:
        for media in ((Noise(2, frames=4),), (Noise(3, (84, 56), frames=8),), (Noise(1), Noise(2, frames=4))):
            assert gap(policy, engine, *media) < 1e-4, media
    finally:
        engine.close()


@pytest.mark.parametrize("family", ["qwen3_5", "minicpmv4_6"])
def test_linear_attention_on_a_cpu_is_refused_in_one_line(family: str) -> None:
    policy = make_policy(family, layers=4)
    with pytest.raises(ConfigError, match=f"'{family}' has recurrent layers.*use engine 'hf'"):
        VLLM().common_arguments(policy)


def test_heads_that_differ_by_layer_are_all_looked_at() -> None:
    text = make_policy("gemma4").model.config.get_text_config()
    check_heads(text, on_gpu=True)
    with pytest.raises(ConfigError, match="attention heads of"):  # a tiny model's, too small for a CPU
        check_heads(text, on_gpu=False)


def gap(policy: Policy, engine: Any, *media: Noise) -> float:
    """The largest difference of the log-probs of two completions, in nats."""
    prompt = make_prompt("Count to 9 and back.", *media)
    request = Request(prompt, Sampling(max_tokens=8), n=2, seed=0)
    rollouts = [
        Rollout(prompt, list(c.ids), text=c.text, logp=list(c.logp)) for c in engine.generate([request])
    ]
    batch = make_batch([Group(prompt, rollouts, id="0")], policy.pad_id, policy.device)
    logp_BT = policy.forward(batch)["logp"].detach()
    return max(
        float((logp_BT[b, : len(r)] - torch.tensor(r.logp)).abs().max()) for b, r in enumerate(rollouts)
    )
