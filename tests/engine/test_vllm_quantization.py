"""Rollouts in 8 bits: what is refused, what vLLM is told, and the real vLLM (CPU build) against the rounding
done by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from engine_kit import make_policy, make_prompt

from vlrl.config import load
from vlrl.engine.vllm.common import ONLINE, Quantization, check_quantization, check_rounded
from vlrl.engine.vllm.inprocess import VLLM
from vlrl.engine.vllm.server import VLLMServer
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.trainer.plan import Plan
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Rollout

IDS = list(range(20, 60))
LARGEST = 448.0  # of float8_e4m3fn


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
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda: None)
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
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda: None)
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


# --- with the real vLLM -----------------------------------------------------------------------------------


def in_fp8(values: torch.Tensor) -> torch.Tensor:
    """Rounded to float8_e4m3fn with a scale for each row (the last dimension)."""
    scale = values.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST
    rounded = (values.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return rounded.float() * scale


@contextmanager
def rounding(policy: Policy) -> Iterator[None]:
    """Inside, the linear layers of the decoder multiply in fp8: weights by channel, inputs by token."""
    hooks = []
    for name, module in policy.model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            hooks.append(
                module.register_forward_hook(
                    lambda m, inputs, output: torch.nn.functional.linear(
                        in_fp8(inputs[0]), in_fp8(m.weight), m.bias
                    ).to(output.dtype)
                )
            )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def trainer_logp(policy: Policy) -> list[float]:
    prompt = make_prompt("How many?")
    rollouts = [Rollout(prompt, IDS, logp=[0.0] * len(IDS))]
    batch = make_batch([Group(prompt, rollouts, id="x")], policy.pad_id, policy.device)
    with torch.no_grad():
        return [float(value) for value in policy.forward(batch)["logp"][0]]


def gaps(policy: Policy, engine: VLLM) -> tuple[float, float]:
    """Mean |log p - log p_vllm| (nats a token) of the trainer as it is, and of the trainer in fp8."""
    shown = torch.tensor(engine.seen(make_prompt("How many?"), IDS)[1])
    plain = torch.tensor(trainer_logp(policy))
    with rounding(policy):
        by_hand = torch.tensor(trainer_logp(policy))
    return float((plain - shown).abs().mean()), float((by_hand - shown).abs().mean())


@pytest.mark.vllm
@pytest.mark.skipif(sys.platform != "linux", reason="vLLM's CPU build")
def test_every_sync_rounds_anew() -> None:
    """The whole model, and some of it: vLLM's weights are the present ones, rounded by hand."""
    pytest.importorskip("vllm")
    torch.set_num_threads(1)
    policy = text()
    engine = VLLM(
        quantization="fp8", dtype="bfloat16", max_model_len=512, options={"max_num_seqs": 8}
    ).attach(policy)
    try:
        generator = torch.Generator().manual_seed(1)

        def move(parameters: Any) -> None:
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
            policy.version += 1

        plain, by_hand = gaps(policy, engine)
        assert by_hand < 0.5 * plain, "at the start"
        move(policy.model.parameters())
        assert gaps(policy, engine)[1] > 2 * plain, "the engine has the old weights"
        engine.sync(policy)
        plain, by_hand = gaps(policy, engine)
        assert by_hand < 0.5 * plain, "after all were sent"
        policy.model.requires_grad_(False)
        trained = policy.model.model.layers[1].self_attn.requires_grad_(True)
        move(trained.parameters())
        before, sent = gaps(policy, engine)[1], engine.counters["sync_bytes"]
        engine.sync(policy)
        assert 0 < engine.counters["sync_bytes"] - sent < 0.2 * sent
        plain, by_hand = gaps(policy, engine)
        assert by_hand < 0.5 * min(plain, before), "after some were sent"
    finally:
        engine.close()
