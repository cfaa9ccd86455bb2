"""Weights for an engine: the names of a checkpoint, adapters folded in, the policy untouched."""

import copy

import engine_kit
import pytest
import torch
from peft import LoraConfig, get_peft_model

from vlrl.engine.named_weights import named_weights


@pytest.mark.parametrize("family", ["qwen2_5_vl", "text"])
def test_plain_weights_are_the_checkpoints(family):
    policy = engine_kit.make_policy(family)
    weights = dict(named_weights(policy.model))
    state = {name: value for name, value in policy.model.state_dict().items() if name != "lm_head.weight"}
    assert set(weights) == set(state)
    assert all(weights[name].data_ptr() == state[name].data_ptr() for name in state), "no copies"


def test_adapters_are_folded_in_without_touching_the_model():
    policy = engine_kit.make_policy("text")
    model = get_peft_model(policy.model, LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value.clone() for name, value in named_weights(model)}
    merged = copy.deepcopy(model).merge_and_unload().state_dict()
    assert set(weights) == set(merged) - {"lm_head.weight"}
    for name, value in weights.items():
        torch.testing.assert_close(value, merged[name], atol=1e-6, rtol=1e-6)
    adapted = [name for name in weights if name.endswith(("q_proj.weight", "up_proj.weight"))]
    assert len(adapted) == 6
    assert all(not torch.equal(weights[name], before[f"base_model.model.{name.removesuffix('weight')}base_layer.weight"]) for name in adapted)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
