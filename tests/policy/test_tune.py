"""Trainable parts, their learning rates, and saving, merging and resuming adapters."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from samples import PROMPTS, groups_of, policy_of
from transformers import AutoModelForImageTextToText

from vlrl.config import load
from vlrl.config.settings import settings_of
from vlrl.methods.core.aux_tensor import RefLogp
from vlrl.methods.core.trainable import Full, LoRA, Parts
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Trainable
from vlrl.policy import Family, Policy
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.trainer.step.optim import make_accelerator


def step(policy: Policy, groups: list[dict], batch, times: int = 2) -> None:
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)
    for _ in range(times):
        optimizer.zero_grad()
        (-policy.forward(batch)["logp"].sum()).backward()
        optimizer.step()


def batch_for(policy: Policy):
    return make_batch(groups_of([PROMPTS["image"], PROMPTS["text"]]), policy.pad_id)


def test_learning_rates_by_part_and_name() -> None:
    policy = policy_of("qwen2_5_vl")
    groups = Parts(
        lr={"vision": 1e-6, "projector": 1e-5}, lr_of={"embed_tokens": 0.0}, frozen=("patch_embed",)
    )(policy)
    rate = {id(p): group.get("lr") for group in groups for p in group["params"]}
    names_of = {n: rate.get(id(p)) for n, p in policy.model.named_parameters()}
    assert names_of["model.visual.patch_embed.proj.weight"] is None
    assert not policy.model.model.visual.patch_embed.proj.weight.requires_grad
    assert names_of["model.visual.blocks.0.norm1.weight"] == 1e-6
    assert names_of["model.visual.merger.mlp.0.weight"] == 1e-5
    assert names_of["model.language_model.embed_tokens.weight"] == 0.0
    assert names_of["model.language_model.norm.weight"] is None
    assert id(policy.model.model.language_model.norm.weight) in rate  # the run's own rate


@pytest.mark.parametrize(
    ("preset", "tower", "merger"),
    [
        ("mm_eureka", False, False),  # freeze_prefix visual: visual.merger begins so too
        ("reinforced_reasoning_for_embodied_planning", False, False),
        ("univg_r1", False, False),  # vision_modules_keywords: all names with "visual"
        ("btl_ui", True, False),  # freeze_vit false, freeze_aligner its default
    ],
)
def test_what_releases_freeze(preset: str, tower: bool, merger: bool) -> None:
    policy = policy_of("qwen2_5_vl")
    build(Trainable, load([f"methods/{preset}"]).tree["trainable"])(policy)
    learns = {name: parameter.requires_grad for name, parameter in policy.model.named_parameters()}
    assert learns["model.visual.blocks.0.norm1.weight"] == tower
    assert learns["model.visual.merger.mlp.0.weight"] == merger
    assert learns["model.language_model.norm.weight"]


def test_full_applies_no_decay_to_vectors() -> None:
    policy = policy_of("text")
    matrices, vectors = Full()(policy)
    assert all(p.dim() > 1 for p in matrices["params"])
    assert vectors["weight_decay"] == 0.0
    assert sum(len(g["params"]) for g in (matrices, vectors)) == len(list(policy.model.parameters()))


@pytest.mark.parametrize(
    "options",
    [{}, {"dora": True}, {"rank_stabilised": True, "r": 4}, {"parts": ("language", "projector", "vision")}],
)
def test_adapter_trains_merges_and_resumes(options: dict, tmp_path) -> None:
    policy = policy_of("qwen2_5_vl")
    batch = batch_for(policy)
    start = policy.forward(batch)["logp"].detach()
    base = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    groups = LoRA(**options)(policy)
    trained = sum(p.numel() for p in groups[0]["params"])
    assert 0 < trained < sum(p.numel() for p in base.values())
    torch.testing.assert_close(
        policy.forward(batch)["logp"], start, atol=1e-6, rtol=0
    )  # B = 0: nothing changes at first
    step(policy, groups, batch)
    after = policy.forward(batch)["logp"].detach()
    assert not torch.allclose(after, start, atol=1e-3)
    policy.keep_reference()
    torch.testing.assert_close(
        RefLogp()(policy, batch), start, atol=1e-6, rtol=0
    )  # the adapter off is the reference

    policy.save(tmp_path)
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    merged = policy_of("qwen2_5_vl")
    merged.params.model = plain.eval()
    torch.testing.assert_close(merged.forward(batch)["logp"], after, atol=1e-5, rtol=0)

    again = Policy(build(Family, {"name": "qwen2_5_vl", "model": str(tmp_path)}))
    torch.testing.assert_close(again.forward(batch)["logp"], after, atol=0, rtol=0)
    assert len(LoRA(**options)(again)[0]["params"]) == len(groups[0]["params"])


def test_an_adapter_on_trained_weights_keeps_its_base(tmp_path) -> None:
    policy = policy_of("text")
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    step(policy, Full()(policy), batch)
    policy.version = 2
    step(policy, LoRA()(policy), batch)
    policy.save(tmp_path)
    again = Policy(build(Family, {"name": "text", "model": str(tmp_path)}))
    torch.testing.assert_close(again.forward(batch)["logp"], policy.forward(batch)["logp"], atol=0, rtol=0)


def test_config_errors_name_the_field() -> None:
    with pytest.raises(ConfigError, match="no linear layer of language matches targets='nothing'"):
        LoRA(targets="nothing")(policy_of("text"))
    with pytest.raises(ConfigError, match="is not a regular expression"):
        Parts(frozen=("(",))
    with pytest.raises(ConfigError, match=r"policy\.quantize"):
        policy_of("text", quantize="nf4")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("kind", ["adamw_8bit", "paged_adamw", "paged_adamw_8bit"])
@pytest.mark.parametrize(
    ("installed", "wanted"),
    [(True, "needs a GPU, and there is none; use 'adamw'"), (False, "needs bitsandbytes; `pip install")],
)
def test_optimizers_of_a_gpu_are_refused_before_a_model_is_loaded(
    kind: str, installed: bool, wanted: str, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes") if installed else None)
    optimizer = settings_of({"optimizer": {"kind": kind}}).optimizer
    with pytest.raises(ConfigError, match=f"optimizer.kind: '{kind}' {wanted}"):
        make_accelerator([optimizer])


def test_checkpointing_changes_no_gradient() -> None:
    grads = []
    for checkpointing in (False, True):
        policy = policy_of("qwen2_5_vl", checkpointing=checkpointing)
        policy.forward(batch_for(policy))["logp"].sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    assert (grads[0] - grads[1]).norm() / grads[0].norm() < 1e-6


@pytest.mark.parametrize(
    ("name", "kind"),
    [("glm4v_moe", ""), ("kimi_k25", ""), ("qwen3_5_moe", ""), ("text", "qwen3_next"), ("text", "qwen3_moe")],
)
def test_an_adapter_of_a_mixture_is_on_the_layers_that_are_named(name, kind, tmp_path) -> None:
    """PEFT takes the shared layers of GLM-4.5V and Qwen3-Next for the experts of transformers 4."""
    tiny = {"tiny": {"hidden": 64, "layers": 4, "heads": 4, "kv_heads": 2, "intermediate": 96, "kind": kind}}
    policy = Policy(build(Family, {"name": name, **tiny})) if kind else policy_of(name)
    head = policy.model.get_output_embeddings()
    linear = {
        n
        for n, module in policy.model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head and "visual" not in n
    }
    linear = {n for n in linear if "vision" not in n and "projector" not in n}
    groups = LoRA(r=2)(policy)
    adapted = {n.split("base_model.model.", 1)[1] for n, m in policy.model.named_modules() if has_lora(m)}
    assert adapted == linear
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    step(policy, groups, batch)
    after = policy.forward(batch)["logp"].detach()
    policy.save(tmp_path)
    (tmp_path / "trainer").mkdir()  # a run's own checkpoint: its adapter goes on
    again = Policy(build(Family, {"name": name, "model": str(tmp_path)}))
    assert {n for n, m in again.model.named_modules() if has_lora(m)} == {
        n for n, m in policy.model.named_modules() if has_lora(m)
    }
    torch.testing.assert_close(again.forward(batch)["logp"], after, atol=1e-5, rtol=0)


def has_lora(module: torch.nn.Module) -> bool:
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")
