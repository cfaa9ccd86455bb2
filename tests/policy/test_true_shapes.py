"""Every model of configs/models at the true shape of its release. The forward passes need gigabytes and are
marked slow; `python -m benchmarks.true_shapes` runs them all and prints a table."""

from __future__ import annotations

import pytest

from benchmarks.true_shapes import MODELS, check, counted, family_of, lora_layers
from vlrl.plan.releases import release
from vlrl.plan.setup import Assumed, picture_of
from vlrl.policy.families.vision import VisionFamily

SEES = [model for model in MODELS if family_of(model).is_multimodal]


@pytest.mark.sweep
@pytest.mark.parametrize("model", SEES)
@pytest.mark.parametrize("pixels", [(224, 168), (640, 480), (300, 900)])
def test_the_planner_counts_a_pictures_tokens_as_the_processor_does(
    model: str, pixels: tuple[int, int]
) -> None:
    family = family_of(model)
    assert isinstance(family, VisionFamily)
    wanted = picture_of(family, Assumed(width=pixels[0], height=pixels[1]))
    found, text = counted(family, pixels)
    tiles = wanted.patches // wanted.largest
    class_tokens = wanted.largest - found.largest  # of a tile
    assert wanted.tokens in (found.tokens, text)
    assert wanted.patches == found.patches + class_tokens * tiles and class_tokens in (0, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("model", MODELS)
def test_lora_finds_the_layers_of_the_whole_release(model: str) -> None:
    layers = family_of(model)
    config = release(layers.model).config
    text = config.get("text_config", config)
    assert lora_layers(model) == 7 * text["num_hidden_layers"]  # q, k, v, o, gate, up, down


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_packed_forward_equals_plain_transformers(model: str) -> None:
    done = check(model, layers=1 if "7b" in model else 2)
    assert done.difference < 1e-4
    assert 0 < done.gradient < float("inf")


@pytest.mark.slow
@pytest.mark.vllm
def test_new_weights_reach_every_tensor_of_vllm() -> None:
    pytest.importorskip("vllm")
    from benchmarks.vllm_shapes import check_vllm

    done = check_vllm("smollm2_135m", layers=1)
    assert done.unmoved == {}
    assert done.tensors == 2 + 6  # embeddings and norm; qkv, o, gate and up, down, two norms
    assert done.worst < 1e-4
