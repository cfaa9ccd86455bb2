"""max_pixels, min_pixels and video_max_pixels mean the same for every family: pixels that the tower sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from contract_kit import VLLM_TESTED
from samples import Flicker, Noise, ask, groups_of, plain_logp, policy_of

from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Features, Policy
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Media

SIDE = 56  # of a tiny model's tile; its Qwen-VL's unit is 28
TILE = SIDE * SIDE
PICTURES = (Noise(1, (640, 480)), Noise(2, (120, 300)), Noise(3, (60, 40)))
BOUNDS: dict[str, tuple[int, ...]] = {  # falling, down to the least
    "qwen2_vl": (200_000, 20_000, 4000, 784),
    "qwen2_5_vl": (200_000, 20_000, 4000, 784),
    "qwen3_vl": (200_000, 20_000, 4000, 784),
    "gemma3": (200_000, 20_000, TILE),
    "internvl": (200_000, 20_000, 3 * TILE, 2 * TILE, TILE),
    "llava_onevision": (200_000, 20_000, 3 * TILE, 2 * TILE),
    "smolvlm": (200_000, 20_000, 4 * TILE, TILE),
}
FIXED_FRAMES = ("internvl", "llava_onevision", "smolvlm")


def pixels_of(features: Features, frames: int = 1) -> int:
    """Pixels of a picture, or of a frame, that the tower is given, all tiles together."""
    tensors = features.tensors
    for name in ("image_grid_thw", "video_grid_thw"):
        if name in tensors:
            return int(tensors[name][0, 1:].prod()) * 14 * 14
    name = "pixel_values" if "pixel_values" in tensors else "pixel_values_videos"
    return tensors[name].numel() // 3 // frames


def seen(policy: Policy, medium: Media) -> tuple[int, int]:
    """(pixels, tokens of the prompt) of one picture."""
    encoded = policy.encode(ask("What?", (medium,)))
    return pixels_of(encoded.features[0]), len(encoded.ids)


@pytest.mark.sweep
@pytest.mark.parametrize("name", BOUNDS)
def test_the_tower_sees_at_most_max_pixels_and_prompts_grow_no_longer(name: str) -> None:
    free = [seen(policy_of(name), picture) for picture in PICTURES]
    before = free
    for bound in BOUNDS[name]:
        now = [seen(policy_of(name, max_pixels=bound), picture) for picture in PICTURES]
        assert all(pixels <= bound for pixels, _ in now), (bound, now)
        assert all(pixels <= was and tokens <= had for (pixels, tokens), (was, had) in zip(now, before))
        before = now
    if name != "gemma3":  # whose tower sees one size
        assert sum(tokens for _, tokens in before) < sum(tokens for _, tokens in free)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_that_cannot_be_kept_is_refused_with_one_that_can(name: str) -> None:
    least = BOUNDS[name][-1]
    with pytest.raises(ConfigError, match=rf"policy.max_pixels: {least - 1} .*{name}.*{least}"):
        policy_of(name, max_pixels=least - 1)
    with pytest.raises(ConfigError, match=f"policy.max_pixels: {least} is below min_pixels, {least + 1}"):
        policy_of(name, max_pixels=least, min_pixels=least + 1)


@pytest.mark.parametrize(
    ("name", "bound"),
    [("qwen2_5_vl", 50_000), ("qwen3_vl", 50_000), ("internvl", 3 * TILE), ("smolvlm", 20_000)],
)
def test_the_tower_sees_at_least_min_pixels(name: str, bound: int) -> None:
    policy = policy_of(name, min_pixels=bound)
    assert all(seen(policy, picture)[0] >= bound for picture in PICTURES)


@pytest.mark.parametrize("name", ["gemma3", "llava_onevision"])
def test_towers_of_one_size_refuse_a_larger_minimum(name: str) -> None:
    policy_of(name, min_pixels=TILE)
    with pytest.raises(ConfigError, match=f"policy.min_pixels: {TILE + 1} cannot be kept"):
        policy_of(name, min_pixels=TILE + 1)


def test_text_models_and_models_without_video_refuse_what_they_do_not_read() -> None:
    with pytest.raises(ConfigError, match="policy.max_pixels: 'text' reads no pictures"):
        policy_of("text", max_pixels=1000)
    with pytest.raises(ConfigError, match="policy.video_max_pixels: 5000 .*'gemma3' reads no videos"):
        policy_of("gemma3", video_max_pixels=5000)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_frames_are_bounded(name: str) -> None:
    clip = Flicker(1, 4, (224, 168))
    free = policy_of(name).encode(ask("Which?", videos=(clip,)))
    for bound in (20_000, 4000, 784):
        encoded = policy_of(name, video_max_pixels=bound).encode(ask("Which?", videos=(clip,)))
        assert pixels_of(encoded.features[0]) <= bound
        assert len(encoded) < len(free)
    with pytest.raises(ConfigError, match="policy.video_max_pixels: 783 cannot be kept"):
        policy_of(name, video_max_pixels=783)


@pytest.mark.parametrize("name", FIXED_FRAMES)
def test_frames_of_one_size_refuse_a_smaller_bound(name: str) -> None:
    clip = Flicker(1, 4, (224, 168))
    encoded = policy_of(name, video_max_pixels=TILE).encode(ask("Which?", videos=(clip,)))
    assert pixels_of(encoded.features[0], frames=4) == TILE
    with pytest.raises(ConfigError, match=f"policy.video_max_pixels: {TILE - 1} .*give at least {TILE}"):
        policy_of(name, video_max_pixels=TILE - 1)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "gemma3"])
def test_bounded_pictures_are_packed_as_plain_transformers_runs_them(name: str, tmp_path: Path) -> None:
    policy = policy_of(name, max_pixels=3 * TILE)
    prompt = ask("How many?", (PICTURES[0],))
    groups = groups_of([prompt])
    ours = policy.forward(make_batch(groups, policy.pad_id))["logp"]
    for b, rollout in enumerate(groups[0].rollouts):
        plain = plain_logp(policy, rollout)
        scored = torch.tensor(rollout.loss_mask)
        torch.testing.assert_close(ours[b, : len(rollout.ids)][scored], plain[scored], atol=1e-4, rtol=0)
    policy.save(tmp_path)  # what vLLM and others read
    loaded = Policy(build(Family, {"name": name, "model": str(tmp_path)}))
    assert loaded.encode(prompt).ids == policy.encode(prompt).ids


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("name", VLLM_TESTED)
def test_vllm_shows_its_model_the_same(name: str) -> None:
    pytest.importorskip("vllm")
    from benchmarks.vllm_shapes import check_policy

    tiny = {"hidden": 128, "layers": 1, "vision_hidden": 128, "vision_layers": 1}
    done = check_policy(policy_of(name, tiny=tiny, max_pixels=3 * TILE), name)
    assert done.unmoved == {} and done.worst < 1e-4
