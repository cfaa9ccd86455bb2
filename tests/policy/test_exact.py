"""Packed = padded = one plain forward per sample, for every family and modality: log-probs and gradients."""

from __future__ import annotations

import pytest
import torch
from samples import PROMPTS, groups_of, plain_logp, policy_of, processed

from vlrl.methods.core.aux_tensor import Entropy
from vlrl.plugins.registry import get, names
from vlrl.policy import Family, tree_attention
from vlrl.trainer.step.loss_inputs import make_batch

VIDEO = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm", "llava_onevision"}
CASES = [
    (name, modality)
    for name in names(Family)
    for modality in PROMPTS
    if modality == "text" or (get(Family, name).is_multimodal and (modality != "video" or name in VIDEO))
]


@pytest.fixture(scope="module")
def policies():
    made: dict = {}

    def get_policy(name: str, layout: str):
        if (name, layout) not in made:
            made[name, layout] = policy_of(name, layout)
        return made[name, layout]

    return get_policy


def weights(batch) -> torch.Tensor:
    return torch.randn(batch.ids_BT.shape, generator=torch.Generator().manual_seed(1)) * batch.loss_mask_BT


def gradient(policy, loss: torch.Tensor) -> torch.Tensor:
    policy.model.zero_grad()
    loss.backward()
    return torch.cat(
        [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in policy.model.parameters()]
    )


@pytest.mark.parametrize(("name", "modality"), CASES)
def test_packed_padded_and_per_sample_agree(
    policies, name: str, modality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed rows with a dense mask, and with the attention of long rows."""
    packed, padded = policies(name, "packed"), policies(name, "padded")
    groups = groups_of([PROMPTS[modality], PROMPTS["text"]])
    batch = make_batch(groups, packed.pad_id)
    w = weights(batch)
    fast, plain = packed.forward(batch)["logp"], padded.forward(batch)["logp"]
    assert tree_attention.is_installed(packed.model)
    monkeypatch.setattr(tree_attention, "MIN_ROW", 0)
    branched = packed.forward(batch)["logp"]
    packed.model.train()
    single = torch.zeros_like(fast)
    for b, rollout in enumerate(batch.rollouts):
        single[b, : len(rollout)] = plain_logp(packed, rollout)
    single = single * batch.loss_mask_BT
    torch.testing.assert_close(fast, single, atol=1e-5, rtol=0)
    torch.testing.assert_close(branched, single, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain, single, atol=1e-5, rtol=0)
    wanted = gradient(packed, (single * w).sum())
    for policy, logp in ((packed, fast), (packed, branched), (padded, plain)):
        got = gradient(policy, (logp * w).sum())
        assert (got - wanted).norm() / wanted.norm() < 1e-4


def test_long_completions_of_short_prompts_are_not_packed_where_attention_is_dense(policies) -> None:
    fast, plain = policy_of("qwen2_5_vl", attn="eager"), policies("qwen2_5_vl", "padded")
    for longest, alike in ((8, False), (400, True)):
        batch = make_batch(groups_of([PROMPTS["image"]], (4,), longest=longest), fast.pad_id)
        tokens = []
        for policy in (fast, plain):
            before = policy.counters["tokens"]
            policy.forward(batch)
            tokens.append(policy.counters["tokens"] - before)
        assert (tokens[0] == tokens[1]) is alike


@pytest.mark.parametrize(("name", "modality"), CASES)
def test_ids_and_types_are_the_processors_own(policies, name: str, modality: str) -> None:
    policy = policies(name, "packed")
    encoded, own = policy.encode(PROMPTS[modality]), processed(policy, PROMPTS[modality])
    assert encoded.ids == own["input_ids"][0].tolist()
    if "mm_token_type_ids" in own:
        assert encoded.types == own["mm_token_type_ids"][0].tolist()
    for name_, value in own.items():
        parts = [feature.tensors[name_] for feature in encoded.features if name_ in feature.tensors]
        if parts and name_.startswith("pixel_values") and value.shape[1:] == parts[0].shape[1:]:
            torch.testing.assert_close(torch.cat(parts), value)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_other_text_models(kind: str) -> None:
    policy = policy_of("text", tiny={"kind": kind})
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    logp = policy.forward(batch)["logp"]
    for b, rollout in enumerate(batch.rollouts):
        wanted = plain_logp(policy, rollout) * batch.loss_mask_BT[b, : len(rollout)]
        torch.testing.assert_close(logp[b, : len(rollout)], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", names(Family))
def test_all_modalities_in_one_batch_and_any_chunk(policies, name: str) -> None:
    import dataclasses

    policy = policies(name, "packed")
    usable = [prompt for modality, prompt in PROMPTS.items() if (name, modality) in CASES]
    batch = make_batch(groups_of(usable), policy.pad_id)
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
