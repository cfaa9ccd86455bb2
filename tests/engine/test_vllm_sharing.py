"""One copy of the weights: the policy's parameters are views of vLLM's fused and padded tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from run_kit import View
from torch import nn

from vlrl.engine.hf.engine import HF
from vlrl.engine.vllm.inprocess import VLLM
from vlrl.engine.vllm.sharing import SharedWeights
from vlrl.methods.core.trainable import LoRA
from vlrl.plugins.registry import ConfigError


class Fused(nn.Module):
    """Stands for a vLLM model: q, k, v in one tensor, a padded embedding, a norm, and a layer that is held
    transposed."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shapes = {"qkv": (4 + 2 + 2, 3), "embed": (8, 3), "norm": (3,), "turned": (3, 5)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False))

    def load_weights(self, weights: Any) -> None:
        rows = {"q": (0, 4), "k": (4, 2), "v": (6, 2)}
        for name, weight in weights:
            if name in rows:
                self.qkv.data.narrow(0, *rows[name]).copy_(weight)
            elif name == "embed":
                self.embed[:6].data.copy_(weight)
            else:
                getattr(self, name).data.copy_(weight.t() if name == "turned" else weight)


class Plain(nn.Module):
    """Stands for the policy's model."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"q": (4, 3), "k": (2, 3), "v": (2, 3), "embed": (6, 3), "norm": (3,), "turned": (5, 3)}
        for number, (name, shape) in enumerate(shapes.items()):
            self.register_parameter(
                name, nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(number)))
            )


def shared_by(plain: Plain, fused: Fused) -> SharedWeights:
    shared = SharedWeights(plain)
    shared.load_into(fused)
    shared.share(fused)
    return shared


def test_fused_and_padded_tensors_are_shared_by_their_rows() -> None:
    plain, fused = Plain(), Fused()
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    shared = shared_by(plain, fused)
    assert set(shared.address) == {"q", "k", "v", "embed", "norm"} and set(shared.unshared()) == {"turned"}
    assert shared.refused == {"vLLM holds it in another layout": 5 * 3 * 4}
    assert shared.shared_bytes == 4 * (12 + 6 + 6 + 18 + 3)
    assert all(torch.equal(p, before[name]) for name, p in plain.named_parameters())
    assert plain.k.data_ptr() == fused.qkv.data_ptr() + 4 * 3 * 4, "k begins behind the four rows of q"
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    plain.k.sum().backward()
    optimizer.step()
    torch.testing.assert_close(fused.qkv[4:6], before["k"] - 1)
    assert torch.equal(fused.qkv[:4], before["q"]) and torch.equal(fused.qkv[6:], before["v"])


def test_a_weight_that_the_trainer_moves_is_sent_again() -> None:
    plain, fused = Plain(), Fused()
    shared = shared_by(plain, fused)
    plain.norm.data = plain.norm.data.clone()
    assert set(shared.unshared()) == {"norm", "turned"}


def test_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"none .*float32 on cpu, vLLM torch.bfloat16"):
        shared_by(Plain(), Fused(torch.bfloat16))


def test_a_tensor_that_vllm_replaced_is_not_shared() -> None:
    plain, fused = Plain(), Fused()
    shared = SharedWeights(plain)
    shared.load_into(fused)
    fused.qkv = nn.Parameter(fused.qkv.detach().clone(), requires_grad=False)
    shared.share(fused)
    assert set(shared.address) == {"embed", "norm"}


@pytest.mark.parametrize(("fields", "told"), [({"tensor_parallel": 2}, "tensor_parallel 2")])
def test_what_cannot_share_is_refused_before_anything_is_loaded(
    fields: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda *_: None)
    with pytest.raises(ConfigError, match=told):
        VLLM(share_weights=True, **fields).check(View(family=None))  # type: ignore[arg-type]


def greedy(engine: Any, tools: Any) -> list[Any]:
    a, b = tools.Noise(0), tools.Noise(1, (84, 56))
    prompts = [tools.prompt("What is it?"), tools.prompt("Look", a), tools.prompt("Compare", a, b)]
    requests = [tools.request(p, temperature=0.0, max_tokens=6, tag=i) for i, p in enumerate(prompts)]
    return [c for _, c in sorted((c.request.tag, c) for c in engine.generate(requests))]


def assert_equal_samples(ours: Any, theirs: Any, tools: Any) -> None:
    for one, other in zip(greedy(ours, tools), greedy(theirs, tools), strict=True):
        assert one.ids == other.ids and other.logp == pytest.approx(one.logp, abs=1e-3)


@pytest.mark.vllm
@pytest.mark.parametrize("adapter", [False, True])
def test_vllm_samples_from_the_trainer_s_own_weights(adapter: bool, tools: Any, tmp_path: Any) -> None:
    pytest.importorskip("vllm")
    torch.set_num_threads(1)
    policy = tools.policy("qwen2_5_vl", hidden=128, layers=2)
    if adapter:
        LoRA(r=4)(policy)
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.05)
    engine = VLLM(max_model_len=1024, share_weights=True, lora=adapter, options={"max_num_seqs": 8}).attach(
        policy
    )
    try:
        shared = engine.state.shared
        assert shared is not None
        everything = sum(w.nbytes for w in shared.weights.values())
        assert shared.shared_bytes > 0.95 * everything, shared.reasons()
        assert_equal_samples(HF().attach(policy), engine, tools)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(
                        0.02
                        * torch.randn(
                            parameter.shape, generator=torch.Generator().manual_seed(len(parameter))
                        )
                    )
        policy.version += 1
        engine.sync(policy)
        assert engine.version == policy.version and shared.shared_bytes > 0.95 * everything
        assert_equal_samples(HF().attach(policy), engine, tools)
        policy.save(tmp_path)
        assert sum(f.stat().st_size for f in tmp_path.glob("*.safetensors")) < 1.2 * everything, (
            "views are saved without what lies beside them"
        )
    finally:
        engine.close()
