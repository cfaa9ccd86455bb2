"""Rollouts in 8 bits: what is refused, and what vLLM is told."""

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
