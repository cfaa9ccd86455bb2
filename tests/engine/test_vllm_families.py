"""Families whose names or pictures vLLM has otherwise than transformers: the names are the releases', the
pictures are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_kit import Noise, make_policy, make_prompt
from safetensors import safe_open

from benchmarks.true_shapes import family_of, variant
from vlrl.engine.vllm.prompts import check_pictures, prompt_ids
from vlrl.engine.vllm.sharing import base_weights
from vlrl.engine.vllm.weights import named_weights
from vlrl.methods.core.trainable import LoRA
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy

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


def test_the_prompts_of_both_engines_are_checked() -> None:
    with pytest.raises(ConfigError, match="shows 2 images"):
        prompt_ids(make_policy("llava_onevision", layers=1), make_prompt("Q", *TWO))
