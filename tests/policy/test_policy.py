"""Encoding, caches, counters, guards, references, saved folders."""

from __future__ import annotations

import math

import pytest
import torch
from samples import PROMPTS, Noise, ask, groups_of, policy_of

from vlrl.methods.core.aux_tensor import Entropy, RefLogp
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.views import PolicyView
from vlrl.policy import Family, Policy
from vlrl.policy.encoder import LRUCache
from vlrl.policy.forward import score_tokens
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import CoordinateSpace, Group, Prompt, Rollout, Row


class DistributedStandIn(torch.nn.Module):
    """Wraps a module as DDP does."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return policy_of("qwen2_5_vl")


def test_lru_cache_drops_the_oldest_by_size() -> None:
    made: list[str] = []
    cache: LRUCache[int] = LRUCache(10, size_of=lambda value: value)
    for key, weight in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4)):
        cache.get(key, lambda k=key, w=weight: made.append(k) or w)
    assert made == ["a", "b", "c", "b"]
    assert cache.used == 8
    cache.get("big", lambda: 99)
    assert list(cache.items) == ["big"]


def test_each_image_is_decoded_processed_and_encoded_once() -> None:
    policy = policy_of("qwen2_5_vl")
    one, two = Noise(1), Noise(2, (112, 112))
    groups = groups_of([ask("a", (one, two)), ask("b", (one,)), ask("c", (two, one))])
    batch = make_batch(groups, policy.pad_id)
    policy.forward(batch)
    policy.forward(batch)
    assert policy.counters["decoded"] == policy.counters["processed"] == 2
    assert policy.counters["patches"] == 2 * (
        6 * 4 + 8 * 8
    )  # 84 x 56 and 112 x 112 pixels in patches of 14, in each of two passes
    assert policy.counters["head_rows"] == 2 * int((batch.mask_BT & batch.loss_mask_BT).sum())


def test_the_policy_has_every_member_of_the_protocol(policy: Policy) -> None:
    members = {name for name in vars(PolicyView) if not name.startswith("_")}
    assert len(members) > 20 and [name for name in sorted(members) if not hasattr(policy, name)] == []


def test_text_rows_run_no_vision_code(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.model.model.visual, "forward", None)
    policy.forward(make_batch(groups_of([PROMPTS["text"]]), policy.pad_id))
    with pytest.raises(TypeError):
        policy.forward(make_batch(groups_of([PROMPTS["image"]]), policy.pad_id))


def test_a_dummy_image_gives_the_vision_tower_a_zero_gradient(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    alone = policy.forward(batch)["logp"]
    monkeypatch.setattr("vlrl.policy.policy.world_size", lambda: 2)
    monkeypatch.setattr(policy.params, "wrapped", DistributedStandIn(policy.params.net))
    together = policy.forward(batch)["logp"]
    torch.testing.assert_close(together, alone, atol=0, rtol=0)
    policy.model.zero_grad()
    together.sum().backward()
    grads = [p.grad for p in policy.model.model.visual.parameters()]
    assert all(g is not None and not g.any() for g in grads)


def test_spaces_units_and_prefix(policy: Policy) -> None:
    assert policy.spaces(PROMPTS["images"]) == (
        CoordinateSpace((90, 60), (84, 56)),
        CoordinateSpace((112, 112), (112, 112)),
        CoordinateSpace((60, 150), (56, 140)),
    )
    encoded = policy.encode(PROMPTS["text"])
    assert policy.tokenizer.decode(encoded.ids).endswith("<|im_start|>assistant\n<think>")
    assert encoded.next_position == len(encoded)
    image = policy.encode(PROMPTS["image"])
    assert image.types.count(1) == 6  # 3 x 2 merged patches
    assert image.next_position == len(image) - 6 + 3  # an image takes as many positions as its longer side


def test_placeholders_without_media_are_refused(policy: Policy) -> None:
    shown = Prompt(
        Row("here", "q"),
        ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "here"}]},),
    )
    with pytest.raises(ValueError, match="'here'.* 0 images, but 1 placeholders"):
        policy.encode(shown)
    with pytest.raises(ValueError, match="reads no images"):
        policy_of("text").encode(PROMPTS["image"])


def test_a_completion_with_a_placeholder_is_refused(policy: Policy) -> None:
    bad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert bad in policy.forbidden_ids
    with pytest.raises(
        ValueError, match="completion token 1 is '<\\|image_pad\\|>', a placeholder for media"
    ):
        policy.forward(
            make_batch([Group(PROMPTS["text"], [Rollout(PROMPTS["text"], [5, bad])])], policy.pad_id)
        )


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<answer>", "</answer>"])
def test_tags_are_single_tokens_and_stay_in_the_text(policy: Policy, tag: str) -> None:
    ids = policy.tokenizer(f"{tag}7", add_special_tokens=False).input_ids
    assert len(ids) == 2
    assert policy.decode([*ids, policy.eos_id]) == f"{tag}7"


@pytest.mark.parametrize("text", ["naïve 漢字 🙂", "x\n\n  y\t", "1234567890"])
def test_tokenizer_round_trip(policy: Policy, text: str) -> None:
    assert policy.decode(policy.tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_saved_folder_gives_the_same_model(policy: Policy, tmp_path) -> None:
    policy.save(tmp_path)
    loaded = Policy(build(Family, {"name": "qwen2_5_vl", "model": str(tmp_path)}))
    batch = make_batch(groups_of([PROMPTS["image"], PROMPTS["video"]]), policy.pad_id)
    torch.testing.assert_close(loaded.forward(batch)["logp"], policy.forward(batch)["logp"], atol=0, rtol=0)


def test_pixel_limits_are_set_in_the_processor() -> None:
    policy = policy_of("qwen2_5_vl", max_pixels=4 * 28 * 28, min_pixels=4 * 28 * 28)
    prompt = ask("big", (Noise(1, (400, 400)), Noise(2, (20, 20))))
    assert [space.seen for space in policy.spaces(prompt)] == [(56, 56), (56, 56)]


def test_the_reference_keeps_its_weights_while_the_policy_is_updated() -> None:
    policy = policy_of("text")
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    before = policy.forward(batch)["logp"].detach()
    policy.keep_reference()
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
    policy.keep_reference()  # already kept: no effect
    reference = RefLogp()(policy, batch)
    torch.testing.assert_close(reference, before, atol=0, rtol=0)
    assert not reference.requires_grad
    assert not torch.allclose(policy.forward(batch)["logp"], before)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_scores_by_hand(chunk: int) -> None:
    logits_NV = torch.tensor([[0.0, math.log(3.0)], [1.0, 1.0], [-math.inf, 2.0]])
    out = score_tokens(
        lambda h: h, logits_NV, torch.tensor([1, 0, 1]), torch.tensor([1.0, 0.0, 1.0]), [Entropy()], chunk
    )
    torch.testing.assert_close(out["logp"], torch.tensor([math.log(0.75), math.log(0.5), 0.0]))
    half = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(out["entropy"], torch.tensor([half, math.log(2.0), 0.0]))
    cold = score_tokens(lambda h: h, logits_NV[:1], torch.tensor([1]), torch.tensor([0.5]))
    torch.testing.assert_close(cold["logp"], torch.tensor([math.log(0.9)]))  # odds 3 : 1 become 9 : 1


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6])
def test_the_output_layer_is_called_equally_often_whatever_the_number_of_tokens(count: int) -> None:
    """As ZeRO-3 wants it of its ranks: three chunks of two tokens each in the forward pass, two of them again
    in the backward pass; numbers and gradients stay."""
    head, calls, found = torch.nn.Linear(4, 7), [], []
    head.register_forward_hook(lambda *_: calls.append(1))
    hidden = torch.randn(count, 4, requires_grad=True)
    ids, temperature = torch.arange(count) % 7, torch.ones(count)
    for least in (0, 3):
        calls.clear()
        head.zero_grad()
        out = score_tokens(head, hidden, ids, temperature, [Entropy()], 2, least=least)
        forward = len(calls)
        (out["logp"] + out["entropy"]).sum().backward()
        found.append((forward, len(calls), out["logp"].detach(), head.weight.grad.clone()))
    assert found[0][0] == max(1, -(-count // 2)) and found[1][:2] == (3, 5)
    torch.testing.assert_close(found[0][2:], found[1][2:])


@pytest.mark.parametrize(
    "bad",
    [{"name": "text"}, {"name": "text", "tiny": {"kind": "gpt9"}}, {"name": "text", "tiny": {"hiden": 3}}],
)
def test_config_errors_name_the_field(bad: dict) -> None:
    with pytest.raises(ConfigError, match=r"policy|family"):
        Policy(build(Family, bad))
