"""Rollouts in 8 bits: what is refused, what vLLM is told, and its products after each sync."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from engine_kit import make_policy

from vlrl.config import load
from vlrl.engine.vllm.common import ONLINE, Quantization, check_quantization, check_rounded
from vlrl.engine.vllm.inprocess import VLLM
from vlrl.engine.vllm.server import VLLMServer
from vlrl.engine.vllm.weights import WeightLoader
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.trainer.plan import Plan


def text(kind: str = "qwen3", **tiny: Any) -> Policy:
    sizes = {"hidden": 128, "heads": 4, "kv_heads": 2, "layers": 2, "intermediate": 256, "std": 0.1}
    return make_policy("text", kind=kind, **{**sizes, **tiny})


def test_every_name_has_one_of_vllms() -> None:
    assert set(get_args(Quantization)) == {"", *ONLINE}


@pytest.mark.vllm
def test_vllm_knows_the_names() -> None:
    found = pytest.importorskip("vllm.config.quantization")._ONLINE_SHORTHANDS
    assert set(ONLINE.values()) <= set(found)
    assert found[ONLINE["int8"]].linear is None and found[ONLINE["fp8"]].linear is not None


@pytest.mark.parametrize("engine", [VLLM, VLLMServer])
def test_what_the_build_cannot_is_refused_before_anything_is_loaded(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda *_: None)
    monkeypatch.setattr("vlrl.engine.vllm.common.has_device", lambda: False)
    amx = [True]
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx[0])
    family = build(Family, {"name": "text", "tiny": {"hidden": 128, "heads": 4}, "dtype": "float32"})
    phase: Any = SimpleNamespace(family=family)
    with pytest.raises(ConfigError, match=r"engine.quantization: 'fp8' .*float32; set engine.dtype to bfl"):
        engine(quantization="fp8").check(phase)
    for name in ("fp8", "fp8_block"):
        engine(quantization=name, dtype="bfloat16").check(phase)
    with pytest.raises(ConfigError, match=r"int8 .*not tried with vLLM's CPU build; use fp8"):
        engine(quantization="int8", dtype="bfloat16").check(phase)
    amx[0] = False
    engine(quantization="fp8", dtype="bfloat16").check(phase)
    with pytest.raises(ConfigError, match="fp8_block with AMX instructions.*use fp8"):
        engine(quantization="fp8_block", dtype="bfloat16").check(phase)


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    with pytest.raises(ConfigError, match=r"compute capability 7\.5, and this one has 7\.0"):
        check_quantization("fp8", "bfloat16", on_gpu=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    check_quantization("int8", "bfloat16", on_gpu=True)


def test_models_with_nothing_to_round_are_refused() -> None:
    dense, mixture = text(), text("qwen3_moe")
    check_rounded("fp8", dense, on_gpu=False)
    check_rounded("fp8", mixture, on_gpu=True)
    check_rounded("int8", mixture, on_gpu=True)
    with pytest.raises(ConfigError, match="int8 rounds the experts of a mixture, and 'text' has none"):
        check_rounded("int8", dense, on_gpu=True)
    with pytest.raises(ConfigError, match="'fp8' of a mixture was not tried with vLLM's CPU build"):
        check_rounded("fp8", mixture, on_gpu=False)


def test_shared_weights_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda *_: None)
    engine = VLLM(quantization="fp8", dtype="bfloat16", share_weights=True)
    with pytest.raises(ConfigError, match=r"engine.share_weights: .*'fp8'; set it to false, or engine.quant"):
        engine.check(SimpleNamespace(family=build(Family, {"name": "text", "tiny": {"hidden": 128}})))


def test_vllm_is_told(tmp_path: Any) -> None:
    policy = text()
    for name in ("fp8", "fp8_block"):
        assert VLLM(quantization=name).common_arguments(policy)["quantization"] == ONLINE[name]
    assert "quantization" not in VLLM().common_arguments(policy)
    server = VLLMServer(quantization="fp8", dtype="bfloat16")
    server.state.policy, server.state.root, server.state.base = policy, tmp_path, tmp_path
    server.state.lm = SimpleNamespace(text_config=policy.model.config)
    command = server.command(1)
    assert command[command.index("--quantization") + 1] == "fp8_per_channel"
    assert command[command.index("--dtype") + 1] == "bfloat16"


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        (["engine.quantization=fp8"], ["engine"]),
        (["engine.quantization=fp8", "engine.correction=false"], []),
        (["engine.quantization=fp8", "token_weights.own={name: icepop}"], ["own"]),
    ],
)
def test_the_correction_is_set(words: list[str], weights: list[str]) -> None:
    policy = "policy={name: text, tiny: {hidden: 128, heads: 4}}"
    names = ["base/rl", "tasks/lab_arithmetic", "methods/grpo"]
    engine = "engine={name: vllm_server, dtype: bfloat16}"
    (*_, phase) = Plan.of(load(names, [engine, policy, *words])).phases
    assert list(phase.token_weights) == weights


def test_both_engines_have_the_field() -> None:
    for engine in (VLLM, VLLMServer):
        assert {field.name: field.default for field in fields(engine)}["quantization"] == ""


# --- the real vLLM (CPU build) against the rounding by hand ---------------------------------------------


def in_fp8(values: torch.Tensor) -> torch.Tensor:
    """Rounded to float8_e4m3fn with a scale for each row: weights by output channel, inputs by token."""
    scale = values.float().abs().amax(-1, keepdim=True) / 448.0
    return (values.float() / scale).to(torch.float8_e4m3fn).float() * scale


def distances(policy: Policy, engine: VLLM) -> dict[str, float]:
    """Relative distance of vLLM's products from those by hand with the trainer's present weights."""
    modules = dict(engine.core.collective_rpc("vlrl_model")[0].named_modules())
    own = {name: p.detach().bfloat16() for name, p in policy.model.named_parameters()}
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    wanted = {"lm_head": x.float() @ own["model.embed_tokens.weight"].float().T}
    for layer in ("model.layers.0.", "model.layers.1."):
        for fused, parts in {"self_attn.qkv": "qkv", "mlp.gate_up": ("gate", "up")}.items():
            place = fused.partition(".")[0]
            weight = torch.cat([own[f"{layer}{place}.{part}_proj.weight"] for part in parts])
            wanted[f"{layer}{fused}_proj"] = in_fp8(x) @ in_fp8(weight).T
    found = {name: modules[name].quant_method.apply(modules[name], x).float() for name in wanted}
    return {
        name: float((found[name][:, : one.shape[1]] - one).norm() / one.norm())
        for name, one in wanted.items()
    }


@pytest.mark.vllm
def test_every_sync_rounds_the_present_weights_once() -> None:
    """All of the model, and some of it: a layer, and the embedding that the head is tied to."""
    pytest.importorskip("vllm")
    torch.set_num_threads(1)
    policy, generator = text(), torch.Generator().manual_seed(1)
    core = policy.model.model
    engine = VLLM(quantization="fp8", dtype="bfloat16", max_model_len=256, options={"max_num_seqs": 4})
    engine.attach(policy)

    def move(*modules: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in (p for module in modules for p in module.parameters()):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        policy.version += 1

    try:
        assert max(distances(policy, engine).values()) < 0.01, "at the start"
        move(policy.model)
        assert min(distances(policy, engine).values()) > 0.3, "the engine has the old weights"
        engine.sync(policy)
        assert max(distances(policy, engine).values()) < 0.01, "after all were sent"
        policy.model.requires_grad_(False)
        changed = (core.layers[1].self_attn.requires_grad_(True), core.embed_tokens.requires_grad_(True))
        move(*changed)
        sent = engine.counters["sync_bytes"]
        before = distances(policy, engine)
        assert {n for n, d in before.items() if d > 0.3} == {"lm_head", "model.layers.1.self_attn.qkv_proj"}
        engine.sync(policy)
        assert 0 < engine.counters["sync_bytes"] - sent < 0.6 * sent
        assert max(distances(policy, engine).values()) < 0.01, "after some were sent"
    finally:
        engine.close()


def test_nothing_is_packed_twice() -> None:
    """Experts that vLLM rounds are packed by its reload; the others by ours, and the head in any case."""
    packed: list[str] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name
            self.fused_experts = self

        def process_weights_after_loading(self, layer: Any) -> None:
            packed.append(self.name)

    def layer(kind: str, method: str, name: str) -> Any:
        made = type(kind, (torch.nn.Module,), {})()
        made.quant_method = type(method, (Kernel,), {})(name)
        made.quant_method.moe_kernel = Kernel(name)
        made.w13_weight = torch.zeros(1)
        return made

    layers = [
        layer("RoutedExperts", "UnquantizedFusedMoEMethod", "experts"),
        layer("RoutedExperts", "Int8OnlineMoEMethod", "rounded experts"),
        layer("ParallelLMHead", "UnquantizedEmbeddingMethod", "head"),
        layer("ParallelLMHead", "Fp8PtpcOnlineLinearMethod", "rounded head"),
    ]
    worker = WeightLoader()
    worker.model_runner = SimpleNamespace(get_model=lambda: torch.nn.ModuleList(layers))
    worker._pack(layers)
    assert packed == ["head", "experts"]
    worker._pack([])
    assert packed == ["head", "experts", "head"]
