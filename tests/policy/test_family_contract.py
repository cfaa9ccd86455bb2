"""The contract of a model family, run over every family: what training, sampling, saving and adapters compute
is what plain transformers computes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from contract_kit import CASES, FAMILIES, VISION, modalities, split, tiny_policy
from samples import PROMPTS, Noise, ask, given, groups_of, plain_logp, processed

from vlrl.engine.hf.engine import HF
from vlrl.engine.vllm.inprocess import max_lora_rank
from vlrl.engine.vllm.prompts import check_pictures
from vlrl.methods.core.aux_tensor import Entropy
from vlrl.methods.core.trainable import LoRA, Parts
from vlrl.plugins.registry import ConfigError, build, get
from vlrl.policy import Family, Policy, recurrent, tree_attention
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Request, Rollout, Sampling

RECURRENT = ("qwen3_5", "qwen3_5_moe", "lfm2_vl", "minicpmv4_6", "text/qwen3_next", "text/qwen3_5_text")
SHARP = {"std": 0.15, "layers": 4}  # a tiny model whose answers depend on what it is shown
PICTURES = (Noise(1, (640, 480)), Noise(2, (120, 300)), Noise(3, (60, 40)))


@pytest.fixture(scope="module")
def policies():
    made: dict = {}

    def get_policy(spec: str, layout: str = "packed") -> Policy:
        if (spec, layout) not in made:
            made[spec, layout] = tiny_policy(spec, layout)
        return made[spec, layout]

    return get_policy


def plain_of(policy: Policy, batch) -> torch.Tensor:
    """(B, T) log-probs by one plain forward per rollout, 0 where no loss is taken."""
    out = torch.zeros(batch.ids_BT.shape)
    policy.model.train()
    for b, rollout in enumerate(batch.rollouts):
        out[b, : len(rollout)] = plain_logp(policy, rollout)
    return out * batch.loss_mask_BT


def gradient(policy: Policy, loss: torch.Tensor) -> torch.Tensor:
    policy.model.zero_grad()
    loss.backward()
    return torch.cat(
        [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in policy.model.parameters()]
    )


# --- forward and gradient -----------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(("spec", "modality"), CASES)
def test_packed_padded_and_plain_transformers_agree(
    policies, spec: str, modality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed rows with a dense mask, packed rows with the attention of long rows, padded rows."""
    packed, padded = policies(spec), policies(spec, "padded")
    batch = make_batch(groups_of([PROMPTS[modality], PROMPTS["text"]]), packed.pad_id)
    ours = [packed.forward(batch)["logp"], padded.forward(batch)["logp"]]
    monkeypatch.setattr(tree_attention, "MIN_ROW", 0)
    ours.append(packed.forward(batch)["logp"])
    plain = plain_of(packed, batch)
    for logp in ours:
        torch.testing.assert_close(logp, plain, atol=1e-5, rtol=0)
    w = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    wanted = gradient(packed, (plain * w).sum())
    for policy, logp in zip((packed, padded, packed), ours):
        got = gradient(policy, (logp * w).sum())
        assert (got - wanted).norm() / wanted.norm() < 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize(("spec", "modality"), CASES)
def test_ids_and_types_are_the_processors_own(policies, spec: str, modality: str) -> None:
    policy = policies(spec)
    encoded, own = policy.encode(PROMPTS[modality]), processed(policy, PROMPTS[modality])
    assert encoded.ids == own["input_ids"][0].tolist()
    if "mm_token_type_ids" in own and policy.family.is_multimodal:
        assert encoded.types == own["mm_token_type_ids"][0].tolist()
    for name, value in own.items():
        parts = [feature.tensors[name] for feature in encoded.features if name in feature.tensors]
        if parts and name.startswith("pixel_values") and value.shape[1:] == parts[0].shape[1:]:
            torch.testing.assert_close(torch.cat(parts), value)


@pytest.mark.sweep
@pytest.mark.parametrize("spec", FAMILIES)
def test_a_batch_of_all_modalities_is_its_parts_and_chunks_change_nothing(policies, spec: str) -> None:
    policy = policies(spec)
    batch = make_batch(groups_of([PROMPTS[modality] for modality in modalities(spec)]), policy.pad_id)
    whole = policy.forward(batch, [Entropy()])
    parts = [policy.forward(make_batch([group], policy.pad_id), [Entropy()]) for group in batch.groups]
    policy.params.net.family = dataclasses.replace(policy.family, chunk=3)
    chunked = policy.forward(batch, [Entropy()])
    policy.params.net.family = policy.family
    for key in ("logp", "entropy"):
        torch.testing.assert_close(chunked[key], whole[key], atol=1e-5, rtol=0)
        row = 0
        for part in parts:
            height, width = part[key].shape
            torch.testing.assert_close(part[key], whole[key][row : row + height, :width], atol=1e-5, rtol=0)
            row += height


@pytest.mark.parametrize("spec", RECURRENT)
def test_states_go_on_through_a_tree_and_leak_nowhere(policies, spec: str) -> None:
    """Branches of a trunk, and of a branch, next to a row of another prompt: the states are those of each
    sequence alone, with their gradient."""
    policy = policies(spec)
    trunk, branch = list(range(20)), list(range(40, 58))
    ends = [[], [7, 8, 9], [*branch, 1], [*branch, 2, 3], [*branch, 2, 4, 5, 6]]
    prompt = PROMPTS["images" if "images" in modalities(spec) else "text"]
    tree = Group(prompt, [Rollout(prompt, [*trunk, *end], "", [0.0] * len([*trunk, *end])) for end in ends])
    batch = make_batch([tree, *groups_of([PROMPTS["text"]])], policy.pad_id)
    packed, plain = policy.forward(batch)["logp"], plain_of(policy, batch)
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=0)
    w = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    wanted, got = (gradient(policy, (logp * w).sum()) for logp in (plain, packed))
    assert (got - wanted).norm() / wanted.norm() < 1e-4


# --- sampling -----------------------------------------------------------------------------------------------


def by_generate(policy: Policy, request: Request) -> list[int]:
    """A greedy completion by the model's own `generate`."""
    inputs = processed(policy, request.prompt)
    out = policy.model.generate(
        **given(policy, inputs), do_sample=False, max_new_tokens=request.sampling.max_tokens,
        suppress_tokens=list(policy.forbidden_ids) or None,
        eos_token_id=list(policy.stop_ids), pad_token_id=policy.pad_id,
    )  # fmt: skip
    return out[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.sweep
@pytest.mark.parametrize("spec", FAMILIES)
def test_engine_hf_samples_as_generate_and_tells_the_log_probs_of_training(spec: str) -> None:
    """All modalities in one call, prompts shared by their samples, prefills in several batches."""
    policy = tiny_policy(spec, tiny=SHARP)
    engine = HF(prefill_tokens=64).attach(policy)
    kinds = modalities(spec)
    greedy = [Request(PROMPTS[kind], Sampling(temperature=0.0, max_tokens=10), tag=kind) for kind in kinds]
    found = {completion.request.tag: completion.ids for completion in engine.generate(greedy)}
    assert found == {request.tag: by_generate(policy, request) for request in greedy}
    assert len({tuple(ids) for ids in found.values()}) == len(kinds), "answers depend on the prompt"
    asked = [Request(PROMPTS[kind], Sampling(temperature=1.0, max_tokens=9), n=3) for kind in kinds]
    completions = list(engine.generate(asked))
    groups = [
        Group(c.request.prompt, [Rollout(c.request.prompt, c.ids, temperature=1.0)]) for c in completions
    ]
    logp = policy.forward(make_batch(groups, policy.pad_id))["logp"]
    for row, completion in zip(logp.tolist(), completions, strict=True):
        assert row[: len(completion.ids)] == pytest.approx(completion.logp, abs=1e-4)


# --- pictures -----------------------------------------------------------------------------------------------


def pixels_of(policy: Policy, picture: Noise) -> int:
    """Pixels of a picture that the tower is given, all tiles together."""
    (features,) = policy.encode(ask("What?", (picture,))).features
    return policy.family.pixels_seen(policy.processor, features)


@pytest.mark.sweep
@pytest.mark.parametrize("name", VISION)
def test_pixel_bounds_are_kept_or_refused_with_one_that_can_be_kept(name: str) -> None:
    free = [pixels_of(tiny_policy(name), picture) for picture in PICTURES]
    refused = 0
    for field, bound, kept in (
        ("max_pixels", max(free) // 2, lambda pixels, bound: pixels <= bound),
        ("min_pixels", 2 * min(free), lambda pixels, bound: pixels >= bound),
    ):
        try:
            policy = tiny_policy(name, **{field: bound})
        except ConfigError as refusal:
            assert str(refusal).startswith(f"policy.{field}: {bound} cannot be kept: ")
            refused += 1
            continue
        assert all(kept(pixels_of(policy, picture), bound) for picture in PICTURES), field
    assert refused < 2 or max(free) < 1.2 * min(free), "only a tower of one size may refuse both"


@pytest.mark.parametrize("name", VISION)
def test_boxes_go_to_the_models_units_and_back(policies, name: str) -> None:
    policy = policies(name)
    box = (12.0, 6.0, 60.0, 48.0)
    (space,) = policy.spaces(ask("Where?", (Noise(1, (120, 96)),)))
    told = space.from_original(box)
    assert space.original == (120, 96) and space.to_original(told) == pytest.approx(box)
    wanted = {
        "per_mille": (100.0, 62.5, 500.0, 500.0),
        "unit": (0.1, 0.0625, 0.5, 0.5),
        "original": box,
        "seen": tuple(value * space.seen[i % 2] / space.original[i % 2] for i, value in enumerate(box)),
    }
    assert told == pytest.approx(wanted[policy.family.units])


@pytest.mark.parametrize("name", VISION)
def test_what_a_picture_costs_is_what_it_takes(policies, name: str) -> None:
    policy = policies(name)
    for picture in PICTURES:
        image = picture.load()
        cost = policy.family.picture_cost(policy.processor, policy.model.config, *image.size)
        (features,) = policy.encode(ask("What?", (picture,))).features
        written = len(policy.tokenizer(features.text, add_special_tokens=False).input_ids)
        assert features.num_embeds <= cost.tokens <= written, "with or without what frames the embeddings"


# --- training and saving ------------------------------------------------------------------------------------


def step(policy: Policy, groups: list[dict], batch, times: int = 2) -> None:
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)
    for _ in range(times):
        optimizer.zero_grad()
        (-policy.forward(batch)["logp"].sum()).backward()
        optimizer.step()


def batch_for(policy: Policy, spec: str):
    prompts = [PROMPTS["image"], PROMPTS["text"]] if "image" in modalities(spec) else [PROMPTS["text"]]
    return make_batch(groups_of(prompts), policy.pad_id)


@pytest.mark.sweep
@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("frozen", ["vision", "projector", "language"])
def test_each_part_is_trained_or_frozen(name: str, frozen: str) -> None:
    policy = tiny_policy(name)
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    step(policy, Parts(freeze=(frozen,))(policy), batch_for(policy, name))
    moved = {n for n, p in policy.model.named_parameters() if not torch.equal(p, before[n])}
    assert {policy.part_of(n) for n in before} == {"vision", "projector", "language"}
    assert {policy.part_of(n) for n in moved} == {"vision", "projector", "language"} - {frozen}


def auto_model(family: Family) -> Any:
    """transformers' own class that loads the family's folders."""
    return getattr(transformers, family.auto_model)


MIXTURES = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "text/qwen3_moe", "text/qwen3_next")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "spec, experts", [*((spec, False) for spec in FAMILIES), *((spec, True) for spec in MIXTURES)]
)
def test_lora_on_every_layer_trains_merges_and_goes_on(spec: str, experts: bool, tmp_path: Path) -> None:
    policy = tiny_policy(spec)
    batch = batch_for(policy, spec)
    start = policy.forward(batch)["logp"].detach()
    groups = LoRA(r=4, experts=experts)(policy)
    of_experts = [n for n, p in policy.model.named_parameters() if ".experts." in n and p.requires_grad]
    assert of_experts or not experts  # PEFT adapts those of some releases, whose experts are fused, anyway
    text = policy.model.get_base_model().config.get_text_config()
    trained = [name for name, p in policy.model.named_parameters() if p.requires_grad and ".layers." in name]
    adapted = {name.split(".layers.")[1].split(".")[0] for name in trained}
    assert adapted == {str(i) for i in range(text.num_hidden_layers)}
    torch.testing.assert_close(policy.forward(batch)["logp"], start, atol=1e-5, rtol=0)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters() if name in of_experts}
    step(policy, groups, batch)
    assert all(
        not torch.equal(p, before[name])
        for name, p in policy.model.named_parameters()
        if name in of_experts and "lora_B" in name
    )
    after = policy.forward(batch)["logp"].detach()
    assert not torch.allclose(after, start, atol=1e-3)
    policy.save(tmp_path)
    merged = tiny_policy(spec)
    plain, said = auto_model(policy.family).from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not said["missing_keys"] and not said["unexpected_keys"]
    recurrent.install(plain)
    merged.params.model = plain.eval()
    torch.testing.assert_close(merged.forward(batch)["logp"], after, atol=1e-5, rtol=0)
    again = Policy(build(Family, {"name": split(spec)[0], "model": str(tmp_path)}))
    torch.testing.assert_close(again.forward(batch)["logp"], after, atol=1e-6, rtol=0)


@pytest.mark.sweep
@pytest.mark.parametrize("spec", FAMILIES)
def test_a_trained_model_is_saved_as_transformers_loads_it(spec: str, tmp_path: Path) -> None:
    """All weights, the processor with its template, and the prompts that come of them."""
    policy = tiny_policy(spec)
    batch = batch_for(policy, spec)
    step(policy, [{"params": list(policy.model.parameters())}], batch, times=1)
    after = policy.forward(batch)["logp"].detach()
    policy.save(tmp_path)
    _, said = auto_model(policy.family).from_pretrained(tmp_path, output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    again = Policy(build(Family, {"name": split(spec)[0], "model": str(tmp_path)}))
    torch.testing.assert_close(again.forward(batch)["logp"], after, atol=1e-6, rtol=0)
    for modality in modalities(spec):
        assert again.encode(PROMPTS[modality]).ids == policy.encode(PROMPTS[modality]).ids


# --- refusals -----------------------------------------------------------------------------------------------


def test_adapters_on_experts_are_refused_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match="trainable: experts=True, but language of 'qwen3' has no experts"):
        LoRA(experts=True)(tiny_policy("text/qwen3"))
    with pytest.raises(ValueError, match="experts=True works with dropout=0 and dora=False alone"):
        LoRA(experts=True, dora=True)
    policy = tiny_policy("text/qwen3_moe")
    LoRA(r=4, experts=True)(policy)
    with pytest.raises(ConfigError, match="engine.lora: .* on experts .*set engine.lora to false"):
        max_lora_rank(policy)


def test_drafts_are_refused_where_states_cannot_go_back() -> None:
    with pytest.raises(ConfigError, match=r"engine.lookup_tokens: 4 drafts .* recurrent layers.*; use 0"):
        HF(lookup_tokens=4).attach(tiny_policy("text/qwen3_next"))


@pytest.mark.parametrize("name", [name for name in VISION if get(Family, name).vllm_problem])
def test_families_that_vllm_runs_otherwise_are_refused(policies, name: str) -> None:
    with pytest.raises(ConfigError, match=f"family '{name}': .*vLLM 0.32.*; use engine 'hf'"):
        check_pictures(policies(name).family, PROMPTS["text"], True)


def test_layers_of_other_kinds_are_refused_in_one_line() -> None:
    config = transformers.AutoConfig.for_model(
        "jamba", hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64, use_mamba_kernels=False, attn_layer_period=2,
        attn_layer_offset=1, expert_layer_period=3, expert_layer_offset=2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match="'jamba' has .* layers that no engine here .*: use such a model"):
        recurrent.install(model)


@pytest.mark.parametrize("name", VISION)
def test_every_field_of_a_policys_config_can_be_set(name: str) -> None:
    """A class variable of a subclass would take the place of a field of the same name."""
    fields = {field.name for field in dataclasses.fields(get(Family, name))}
    assert {field.name for field in dataclasses.fields(Family)} <= fields


def test_a_text_model_refuses_pictures_and_their_bounds() -> None:
    with pytest.raises(ConfigError, match="policy.max_pixels: 'text' reads no pictures"):
        tiny_policy("text/qwen3", max_pixels=1000)
    assert get(Family, "text").is_multimodal is False
