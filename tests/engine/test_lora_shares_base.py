"""LoRA with engine `hf`: sampling runs the base's own tensors; nothing is merged or copied."""

from __future__ import annotations

import torch

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Request, Row, Sampling


def test_sampling_with_an_adapter_neither_merges_nor_copies_the_base() -> None:
    policy = Policy(build(Family, {"name": "text", "tiny": {}}))
    policy.add_adapter({"r": 4}, ("language",), r".*_proj$")
    base = {
        name: (p.data_ptr(), p.detach().clone())
        for name, p in policy.model.named_parameters()
        if "lora_" not in name
    }
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)  # zeros by default: the adapter would change nothing
    prompt = Prompt(Row("1", "Which digit?"), ({"role": "user", "content": "Which digit?"},))
    engine = build(Engine, "hf").attach(policy)
    with_adapter = [c.ids for c in engine.generate([Request(prompt, Sampling(max_tokens=12), n=4)])]
    assert not any(module.merged for module in policy.model.modules() if hasattr(module, "merged"))
    for name, parameter in policy.model.named_parameters():
        if name in base:
            assert parameter.data_ptr() == base[name][0] and torch.equal(parameter, base[name][1]), name
    assert engine.lm.model is policy.model
    with policy.params.disable_adapter():
        without = [c.ids for c in engine.generate([Request(prompt, Sampling(max_tokens=12), n=4)])]
    assert with_adapter != without
