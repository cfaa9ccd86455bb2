"""bfloat16 matrix products over float32 master weights: small updates are kept; freezing, saving and sampling
do not change results."""

from __future__ import annotations

import pytest
import torch
from samples import PROMPTS, groups_of, policy_of
from transformers import AutoModelForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from vlrl.engine.vllm.weights import named_weights
from vlrl.methods.core.aux_tensor import Entropy, RefLogp
from vlrl.methods.core.trainable import Full, LoRA, Parts
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy, scaled_tables
from vlrl.policy.experts import is_experts
from vlrl.policy.forward import score_tokens
from vlrl.policy.scaled_tables import is_scaled
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Request, Sampling


def half(name: str = "qwen2_5_vl", trainable=None, **fields) -> tuple[Policy, list[dict]]:
    policy = policy_of(name, dtype="bfloat16", **fields)
    groups = (trainable or Full())(policy)
    policy.params.upcast_trainable()
    return policy, groups


def batch_of(policy: Policy, *modalities: str):
    return make_batch(groups_of([PROMPTS[m] for m in modalities or ("text",)]), policy.pad_id)


@pytest.mark.parametrize(("fp32_master_weights", "lowest", "highest"), [(True, 0.99, 1.0), (False, 0.0, 0.5)])
def test_an_update_at_1e_6_is_not_lost(fp32_master_weights: bool, lowest: float, highest: float) -> None:
    policy, groups = half("text", fp32_master_weights=fp32_master_weights)
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():  # the scale of trained weights
        for parameter in policy.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=drawn) * 0.05)
    before = [p.detach().clone() for p in policy.model.parameters()]
    optimizer = torch.optim.AdamW(groups, lr=1e-6, weight_decay=0.0)
    (-policy.forward(batch_of(policy))["logp"].sum()).backward()
    optimizer.step()
    steep = [
        (a, b, b.grad.abs() > 1e-6) for a, b in zip(before, policy.model.parameters())
    ]  # where Adam's step is its learning rate
    assert sum(int(where.sum()) for *_, where in steep) > 10_000
    moved = torch.cat([(a != b)[where] for a, b, where in steep]).float().mean()
    assert lowest <= moved <= highest


def test_matmuls_are_in_bfloat16_and_rotary_frequencies_are_not() -> None:
    policy, _ = half()
    seen = []
    policy.model.lm_head.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    out = policy.forward(batch_of(policy, "image", "text"), [Entropy()])
    assert set(seen) == {torch.bfloat16} and {v.dtype for v in out.values()} == {torch.float32}
    assert {b.dtype for b in policy.model.buffers()} == {torch.float32}
    exact = policy_of("qwen2_5_vl").forward(batch_of(policy, "image", "text"))["logp"]
    assert 0 < (out["logp"] - exact).abs().max() < 1e-2


def test_log_softmax_is_float32_over_bfloat16_logits() -> None:
    logits = (torch.randn(5, 4000, generator=torch.Generator().manual_seed(0)) * 4).bfloat16()
    ids = torch.arange(5)
    wanted = logits.double().log_softmax(-1)[ids, ids]
    torch.testing.assert_close(
        score_tokens(lambda h: h, logits, ids, torch.ones(5))["logp"].double(), wanted, atol=1e-5, rtol=0
    )
    assert (
        logits.log_softmax(-1)[ids, ids].double() - wanted
    ).abs().max() > 1e-3  # the error of a bfloat16 log-softmax


def test_frozen_weights_are_bfloat16_and_change_no_result() -> None:
    full, _ = half()
    parts, _ = half(trainable=Parts(freeze=("vision", "language")))
    batch = batch_of(full, "image", "text")
    logp = full.forward(batch)["logp"].detach()
    torch.testing.assert_close(parts.forward(batch)["logp"], logp, atol=0, rtol=0)
    full.keep_reference()
    torch.testing.assert_close(RefLogp()(full, batch), logp, atol=0, rtol=0)  # in bfloat16 too
    with full.reference() as reference:
        assert torch.bfloat16 in {p.dtype for p in reference.model.parameters()}
    kinds = {name: p.dtype for name, p in parts.model.named_parameters()}
    assert kinds["model.language_model.layers.0.mlp.up_proj.weight"] == torch.bfloat16
    assert kinds["model.visual.merger.mlp.0.weight"] == torch.float32


@pytest.mark.parametrize("tie", [True, False])
def test_a_frozen_embedding_table_stays_in_bfloat16(tie: bool) -> None:
    tiny = {
        "hidden": 64,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "intermediate": 128,
        "vocabulary": 400,
        "tie": tie,
    }
    one, two = (Policy(build(Family, {"name": "text", "tiny": tiny, "dtype": "bfloat16"})) for _ in range(2))
    for policy in (one, two):
        LoRA(r=4)(policy)
    two.model.get_input_embeddings().weight.data = (
        two.model.get_input_embeddings().weight.data.float()
    )  # as a run's own checkpoint is loaded
    for policy in (one, two, two):
        policy.params.upcast_trainable()
    table, wide = (policy.model.get_input_embeddings() for policy in (one, two))
    assert (table.weight.dtype, wide.weight.dtype) == (torch.bfloat16, torch.float32)
    assert table(torch.arange(3)).dtype == torch.float32
    batch = batch_of(one)
    torch.testing.assert_close(one.forward(batch)["logp"], two.forward(batch)["logp"], atol=0, rtol=0)
    one.model.requires_grad_(True)
    one.params.upcast_trainable()
    assert {p.dtype for p in one.model.parameters()} == {torch.float32}


def test_a_checkpoint_keeps_the_master_weights(tmp_path) -> None:
    policy, groups = half("text")
    optimizer = torch.optim.AdamW(groups, lr=1e-6)
    (-policy.forward(batch_of(policy))["logp"].sum()).backward()
    optimizer.step()
    policy.save(tmp_path)
    (tmp_path / "trainer").mkdir()
    again = Policy(build(Family, {"name": "text", "model": str(tmp_path), "dtype": "bfloat16"}))
    for one, two in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(two, one, atol=0, rtol=0)


def test_an_adapter_over_bfloat16_merges_without_loss(tmp_path) -> None:
    policy, groups = half("text", trainable=LoRA(r=4))
    batch = batch_of(policy)
    start = policy.forward(batch)["logp"].detach()
    assert {p.dtype for group in groups for p in group["params"]} == {torch.float32}
    with torch.no_grad():  # far below half a unit in the last place of a bfloat16 weight
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(1e-6)
    policy.save(tmp_path)
    merged = dict(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).named_parameters())
    sent = dict(named_weights(policy.model))
    layer = policy.model.base_model.model.model.layers[0].mlp.up_proj
    name = "model.layers.0.mlp.up_proj.weight"
    for whole in (merged[name], sent[name]):
        torch.testing.assert_close(
            whole - layer.base_layer.weight.float(), layer.get_delta_weight("default"), atol=1e-8, rtol=1e-3
        )
    torch.testing.assert_close(RefLogp()(policy, batch), start, atol=0, rtol=0)  # the adapter off


@pytest.mark.parametrize("name", ["text", "qwen2_5_vl", "gemma3"])
def test_the_engine_samples_with_the_same_precision(name: str) -> None:
    policy, _ = half(name)
    engine = build(Engine, "hf").attach(policy)
    prompt = PROMPTS["text" if name == "text" else "image"]
    with torch.no_grad(), policy.gather_params():
        drawn = list(engine.generate([Request(prompt, Sampling(max_tokens=5, temperature=1.0), n=3, seed=1)]))
    groups = groups_of([prompt], (3,))
    for rollout, completion in zip(groups[0].rollouts, drawn):
        rollout.ids, rollout.loss_mask, rollout.temperature = list(completion.ids), None, 1.0
    logp = policy.forward(make_batch(groups, policy.pad_id))["logp"]
    for row, completion in zip(logp, drawn):
        torch.testing.assert_close(
            row[: len(completion.ids)], torch.tensor(completion.logp), atol=1e-2, rtol=0
        )


# --- mixtures of experts, whose weights are no linear layers ------------------------------------------------

MIXTURES = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "kimi_k25")


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_multiply_in_bfloat16(name, monkeypatch) -> None:
    """Grouped products are not cast by autocast: with float32 master weights they were float32 products."""
    from transformers.integrations import moe

    seen, product = [], moe._grouped_mm
    monkeypatch.setattr(moe, "_grouped_mm", lambda x, w, offs: seen.append(w.dtype) or product(x, w, offs))
    policy, _ = half(name)
    batch = batch_of(policy, "image", "text")
    logp = policy.forward(batch)["logp"]
    assert set(seen) == {torch.bfloat16} and logp.dtype == torch.float32
    logp.sum().backward()
    grads = [p.grad for n, p in policy.model.named_parameters() if ".experts." in n]
    assert grads and all(grad.dtype == torch.float32 and grad.abs().sum() > 0 for grad in grads)
    exact = policy_of(name).forward(batch)["logp"]
    assert 0 < (logp - exact).abs().median() < 1e-2  # rounding may send a token to another expert


@pytest.mark.parametrize("name", MIXTURES)
def test_frozen_experts_are_bfloat16_and_change_no_result(name) -> None:
    """They are nearly all weights of a mixture: in float32 a 30B model needs 113 GiB, in bfloat16 58."""
    full, _ = half(name)
    parts, _ = half(name, trainable=Parts(freeze=("language",)))
    batch = batch_of(full, "image", "text")
    logp = full.forward(batch)["logp"].detach()
    torch.testing.assert_close(parts.forward(batch)["logp"], logp, atol=0, rtol=0)
    full.keep_reference()
    torch.testing.assert_close(RefLogp()(full, batch), logp, atol=0, rtol=0)
    for policy, dtype in ((full, torch.float32), (parts, torch.bfloat16)):
        experts = [m for m in policy.model.modules() if is_experts(m)]
        assert experts and {p.dtype for m in experts for p in m.parameters()} == {dtype}


def test_small_numbers_of_an_adapter_on_experts_act() -> None:
    """W + BA in bfloat16 would be W: such experts stay in float32."""
    policy, _ = half("qwen3_vl_moe", trainable=LoRA(r=4, experts=True))
    batch = batch_of(policy)
    start = policy.forward(batch)["logp"].detach()
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name and ".experts." in name:
                parameter.fill_(1e-4)
    moved = (policy.forward(batch)["logp"] - start).abs()
    assert 0 < moved.max() < 1e-2
    torch.testing.assert_close(RefLogp()(policy, batch), start, atol=0, rtol=0)  # the adapter off


# --- tables with a scale ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_a_scaled_table_has_the_scale_of_its_release_and_may_be_frozen(name) -> None:
    """sqrt(width) rounded to bfloat16, as vLLM has it; a table in bfloat16 gives what a float32 one gives."""
    one, two = (policy_of(name, dtype="bfloat16") for _ in range(2))
    for policy in (one, two):
        LoRA(r=4)(policy)
    for module in two.model.modules():
        if is_scaled(module):
            module.weight.data = module.weight.data.float()  # as a run's own checkpoint is loaded
    for policy in (one, two):
        policy.params.upcast_trainable()
    tables = [[m for m in policy.model.modules() if is_scaled(m)] for policy in (one, two)]
    assert tables[0] and {table.weight.dtype for table in tables[0]} == {torch.bfloat16}
    assert {table.weight.dtype for table in tables[1]} == {torch.float32}
    batch = batch_of(one, "text")
    torch.testing.assert_close(one.forward(batch)["logp"], two.forward(batch)["logp"], atol=0, rtol=0)


def test_the_scale_is_rounded_once_and_rows_are_not() -> None:
    table = Gemma3TextScaledWordEmbedding(4, 40, None, embed_scale=40**0.5)
    model = torch.nn.Sequential(table)
    rows = table.weight.detach()
    for _ in range(2):
        scaled_tables.install(model, torch.bfloat16)
    assert table.embed_scale.item() == 6.3125  # of 6.3246
    torch.testing.assert_close(table(torch.arange(4)), rows * 6.3125, atol=0, rtol=0)
    table.in_float32, table.weight.data = True, table.weight.data.bfloat16()
    assert table(torch.arange(4)).dtype == torch.float32
    whole = Gemma3TextScaledWordEmbedding(4, 40, None, embed_scale=40**0.5)
    scaled_tables.install(torch.nn.Sequential(whole), torch.float32)
    assert whole.embed_scale.item() == pytest.approx(40**0.5, abs=1e-6)
