"""The twelve adapters: what they train, that they begin at the base model, and what the two initialisations
from singular vectors give."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from tiny import steps, text_run

from vlrl.methods.papers.peft_for_rlvr import ADAPTERS, lora_layers
from vlrl.plugins.registry import ConfigError


def outputs(policy):
    """Log-probs of four fixed tokens."""
    ids = torch.tensor([[1, 2, 3, 4]])
    model = policy.model.eval()
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def made(adapter, *words):
    options = f"trainable={{name: peft_for_rlvr, adapter: {adapter}, r: 4, alpha: 8}}"
    return text_run(["methods/peft_for_rlvr"], [options, "group_size=6", *words])


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_an_adapter_begins_at_the_base_model_and_trains_alone(adapter):
    plain = text_run(["methods/dapo"], ["group_size=6"])
    run = made(adapter)
    assert torch.allclose(
        outputs(run.policy), outputs(plain.policy), atol=2e-3
    )  # float32 SVDs for pissa and milora, equal for the others
    before = {name: p.detach().clone() for name, p in run.policy.model.named_parameters()}
    metrics = steps(run, 2)
    moved = {name for name, p in run.policy.model.named_parameters() if not torch.equal(p, before[name])}
    trained = {name for name, p in run.policy.model.named_parameters() if p.requires_grad}
    assert moved and moved <= trained and metrics[0]["grad_norm"] > 0
    marks = {"layernorm": "norm", "ia3": "ia3", "vera": "vera_lambda", "miss": "miss"}.get(adapter, "lora_")
    assert all(marks in name for name in trained)
    after = outputs(run.policy)
    merged = copy.deepcopy(run.policy.model).merge_and_unload()
    assert torch.allclose(
        outputs(SimpleNamespace(model=merged)), after, atol=1e-4
    )  # what is saved is what was trained
    if adapter == "lora_fa":
        assert not any(".lora_A." in name for name in trained)


def test_what_starts_where():
    """milora holds the smallest singular values, pissa the largest; lora_plus trains B twice as fast."""
    shares = {}
    for adapter in ("milora", "pissa"):
        layer = lora_layers(made(adapter).policy.model)[0]
        a, b, scale = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.scaling["default"]
        part = scale * (b @ a).detach()
        whole = part + layer.base_layer.weight.detach()
        values = torch.linalg.svdvals(whole)
        shares[adapter] = torch.linalg.svdvals(part)[:4]
        assert scale == {"milora": 1.0, "pissa": 2.0}[adapter]  # alpha 8 of r 4; milora's alpha is its r
        if adapter == "milora":
            assert torch.allclose(shares[adapter], values[-4:], atol=2e-3)
        else:  # PEFT's fast SVD is a random projection
            assert float(shares["pissa"][0] / values[0]) > 0.97
    assert shares["pissa"].min() > shares["milora"].max()
    run = made("lora_plus")
    assert sorted({group["lr"] for group in run.optimizer.param_groups}) == pytest.approx([1e-3, 2e-3])


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="not the reference"):
        made("pissa", "loss_terms.kl={name: kl, coef: 0.01}")
    with pytest.raises(ConfigError, match="adapter"):
        text_run(["methods/peft_for_rlvr"], ["trainable.dora=true"])
