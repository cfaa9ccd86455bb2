"""What a sync sends: the weights that can have changed, with those that vLLM holds in the same layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from engine_kit import make_policy

from vlrl.engine.base import SamplingModel
from vlrl.engine.vllm import changes
from vlrl.engine.vllm.changes import SentWeights, with_fused
from vlrl.engine.vllm.inprocess import VLLM
from vlrl.engine.vllm.weights import named_weights
from vlrl.methods.core.trainable import Full, LoRA, Parts
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.services.failures import EngineMismatchError

OPTIONS = {"max_num_seqs": 8, "skip_mm_profiling": True}
SIBLINGS = ("q_proj", "k_proj", "v_proj", "o_proj")


def due_after(policy: Policy, trainable: Any) -> set[str] | None:
    """What is due when the engine has the model as it is, and it is trained so."""
    has = SentWeights()
    assert has.due(policy.model) is None, "at first everything"
    trainable(policy)
    has.sent(policy.model)
    return has.due(policy.model)


def test_all_are_due_where_all_are_trained() -> None:
    assert due_after(make_policy("qwen2_5_vl", layers=1), Full()) is None


def test_a_frozen_tower_is_not_sent() -> None:
    policy = make_policy("qwen2_5_vl", layers=2)
    due = due_after(policy, Parts(freeze=("vision", "projector")))
    names = {name for name, _ in policy.model.named_parameters()}
    assert due == {name for name in names if not name.startswith("model.visual.")} and due != names


def test_an_adapter_is_sent_with_its_layer_and_what_is_fused_with_it() -> None:
    policy = make_policy("qwen2_5_vl", hidden=64, layers=2)
    due = due_after(policy, LoRA(r=2, targets="q_proj"))
    sent = {name: weight for name, weight in named_weights(policy.model, due)}
    # q, k and v are one layer of vLLM; o stands beside them and is as linear
    assert {name.split("self_attn.")[1].rpartition(".")[0] for name in sent} == set(SIBLINGS)
    assert {name.split(".self_attn")[0] for name in sent} == {
        f"model.language_model.layers.{layer}" for layer in (0, 1)
    }
    # hidden 64, 4 heads of 16, 2 of them for keys and values: weights of q, k, v, o and biases of q, k, v
    assert sum(weight.nbytes for weight in sent.values()) == 2 * 4 * (64 * (64 + 32 + 32 + 64) + 128)


def test_what_something_else_wrote_or_moved_is_sent() -> None:
    policy, has = make_policy("text", layers=1), SentWeights()
    policy.model.requires_grad_(False)
    has.sent(policy.model)
    assert has.due(policy.model) == set()
    layer = policy.model.model.layers[0]
    with torch.no_grad():
        layer.mlp.down_proj.weight.mul_(2.0)
    beside = {f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    assert has.due(policy.model) == beside
    has.sent(policy.model)
    assert has.due(policy.model) == set()
    policy.model.model.norm.weight.data = policy.model.model.norm.weight.data.clone()
    assert has.due(policy.model) == {"model.norm.weight"}
    assert has.due(make_policy("text", layers=1).model) is None, "another model is sent whole"


def test_sharded_weights_are_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, engine = make_policy("text", layers=1), VLLM()
    LoRA(r=2, targets="q_proj")(policy)
    engine.state.has.sent(policy.model)
    assert engine.to_send(policy)
    monkeypatch.setattr("vlrl.engine.vllm.common.is_sharded", lambda module: True)
    assert engine.to_send(policy) is None


def test_a_norm_does_not_draw_the_embedding_with_it() -> None:
    policy = make_policy("text", layers=1)
    assert with_fused(policy.model, ["model.norm.weight"]) == {"model.norm.weight"}
    assert with_fused(policy.model, []) == set()


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("name", "module", "model"),
    [
        ("qwen2_5_vl", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("qwen3_vl", "qwen3_vl", "Qwen3VLForConditionalGeneration"),
        ("mistral3", "mistral3", "Mistral3ForConditionalGeneration"),
        ("smolvlm", "idefics3", "Idefics3ForConditionalGeneration"),
        ("gemma3", "gemma3_mm", "Gemma3ForConditionalGeneration"),
        ("gemma4", "gemma4_mm", "Gemma4ForConditionalGeneration"),
        ("glm4v", "glm4_1v", "Glm4vForConditionalGeneration"),
        ("qwen3_5", "qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ("text", "qwen2", "Qwen2ForCausalLM"),
    ],
)
def test_what_vllm_fuses_is_sent_together(name: str, module: str, model: str) -> None:
    """Over every group of layers that vLLM's models say they fuse."""
    found = getattr(import_module(f"vllm.model_executor.models.{module}"), model)
    groups = [set(group) for group in found.packed_modules_mapping.values() if len(group) > 1]
    policy = make_policy(name, layers=4)
    names = [key for key, _ in policy.model.named_parameters()]
    checked = 0
    for key in names:
        owner, _, leaf = key.rpartition(".")[0].rpartition(".")
        for group in (group for group in groups if leaf in group):
            fused = {n for n in names if n.rpartition(".")[0] in {f"{owner}.{one}" for one in group}}
            assert fused <= with_fused(policy.model, [key])
            checked += len(fused) > 1
    assert checked


# --- with the real vLLM -----------------------------------------------------------------------------------


def mixture() -> Policy:
    tiny = {"hidden": 64, "heads": 2, "kv_heads": 1, "layers": 2, "intermediate": 128, "std": 0.1}
    return Policy(build(Family, {"name": "qwen3_vl_moe", "tiny": tiny}))


def apart(policy: Policy, engine: VLLM) -> float:
    """The largest difference of the log-probs of given tokens, in nats."""
    from test_vllm_families import gap

    return gap(policy, engine)


def moved(policy: Policy, seed: int) -> None:
    """An update of the trained parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    policy.version += 1


@pytest.fixture(scope="module")
def started() -> Iterator[VLLM]:
    """An engine of a mixture. What is sent is the subject here, not how vLLM starts."""
    pytest.importorskip("vllm")
    engine = VLLM(options=OPTIONS).attach(mixture())
    yield engine
    engine.close()


def taken_over(started: VLLM, policy: Policy, **fields: Any) -> VLLM:
    """The engine as if it had been attached to this policy, which it gets with the next sync."""
    engine = replace(started, **fields)
    object.__setattr__(engine, "state", started.state)
    engine.state.lm, engine.state.policy = SamplingModel(policy), policy
    engine.state.has = SentWeights()
    engine.counters.clear()
    return engine


@pytest.mark.vllm
@pytest.mark.parametrize(
    "trainable",
    [
        LoRA(r=2, targets="q_proj"),
        Parts(frozen=(r"\.(experts|visual|embed_tokens|norm)\.",)),
        Parts(frozen=(r"^(?!.*\.experts\.)",)),  # the experts alone
    ],
    ids=["adapter of q", "all but experts and tower", "experts"],
)
def test_vllm_has_the_trainers_log_probs_after_a_sync_of_some_weights(
    trainable: Any, started: VLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = mixture()
    trainable(policy)
    engine = taken_over(started, policy)
    engine.sync(policy)
    whole = engine.counters["sync_bytes"]
    for seed in (1, 2):
        moved(policy, seed)
        assert apart(policy, engine) > 0.01
        before = engine.counters["sync_bytes"]
        engine.sync(policy)
        assert 0 < engine.counters["sync_bytes"] - before < 0.9 * whole
        assert apart(policy, engine) < 1e-4
    # reversed: one of the trained layers is left out
    moved(policy, 3)
    names = sorted(engine.to_send(policy) or ())
    layer = names[-1].rpartition(".")[0].rpartition(".")[0]
    left = {name for name in names if not name.startswith(layer)}
    monkeypatch.setattr(SentWeights, "due", lambda self, model: left)
    engine.sync(policy)
    assert apart(policy, engine) > 0.01


@pytest.mark.vllm
def test_send_all_sends_all(started: VLLM) -> None:
    policy = mixture()
    LoRA(r=2, targets="q_proj")(policy)
    engine = taken_over(started, policy, send_all=True)
    for _ in range(2):
        engine.sync(policy)
    whole = sum(weight.nbytes for _, weight in named_weights(policy.model))
    assert engine.counters["sync_bytes"] == 2 * whole


@pytest.mark.vllm
def test_a_layer_that_got_a_part_of_its_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an engine of its own: vLLM goes on from a load that was refused no more."""
    policy = mixture()
    LoRA(r=2, targets="q_proj")(policy)
    engine = VLLM(options=OPTIONS).attach(policy)
    try:
        engine.sync(policy)
        moved(policy, 1)
        monkeypatch.setattr(changes, "with_fused", lambda model, names: set(names))
        with pytest.raises(EngineMismatchError, match=r"qkv_proj.*engine.send_all to true"):
            engine.sync(policy)
    finally:
        engine.close()
