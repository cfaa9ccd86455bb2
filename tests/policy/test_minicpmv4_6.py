"""MiniCPM-V 4.6: numbered media, slices of pictures and frames, pixel bounds."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest
import torch
from samples import Flicker, Noise, ask, groups_of, plain_logp, policy_of, processed

from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family, Policy
from vlrl.policy.costs import PictureCost
from vlrl.policy.families.minicpmv4_6 import MiniCPMV46
from vlrl.policy.tiny import Tiny
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Prompt, Row

PICTURES = (Noise(1, (640, 480)), Noise(2, (120, 300)), Noise(3, (60, 40)))


@pytest.fixture(scope="module")
def policy() -> Policy:
    return policy_of("minicpmv4_6")


def numbers_in(policy: Policy, prompt: Prompt) -> list[int]:
    text = policy.tokenizer.decode(policy.encode(prompt).ids)
    return [int(number) for number in re.findall(r"<image_id>(\d+)</image_id>", text)]


def compare(policy: Policy, prompt: Prompt) -> None:
    """The packed forward is that of plain transformers on the processor's output."""
    groups = groups_of([prompt])
    ours = policy.forward(make_batch(groups, policy.pad_id))["logp"]
    for b, rollout in enumerate(groups[0].rollouts):
        scored = torch.tensor(rollout.loss_mask)
        plain = plain_logp(policy, rollout)[scored]
        torch.testing.assert_close(ours[b, : len(rollout.ids)][scored], plain, atol=1e-5, rtol=0)


def test_pictures_and_videos_are_numbered_by_themselves(policy: Policy) -> None:
    prompt = ask("Compare.", (Noise(1), Noise(2), Noise(1)), (Flicker(1), Flicker(2)))
    assert numbers_in(policy, prompt) == [0, 1, 2, 0, 1]
    assert policy.encode(prompt).ids == processed(policy, prompt)["input_ids"][0].tolist()


def test_numbers_go_on_in_a_conversation(policy: Policy) -> None:
    first = ask("How many?", (Noise(1),))
    ids = policy.encode_text("three")
    text = "<|im_end|>\n<|im_start|>user\n<|image_pad|>\nand <|image_pad|>\nhere?<|im_end|>\n"
    images = (*first.images, Noise(2), Noise(3))
    prompt = Prompt(Row("q", "q"), first.messages, images, continues=(first, tuple(ids), text))
    whole = policy.render(first) + "three" + text
    pictures = [image.load() for image in images]
    own = policy.processor(text=[whole], images=pictures, add_special_tokens=False, return_tensors="pt")
    assert policy.encode(prompt).ids == own["input_ids"][0].tolist()
    assert numbers_in(policy, prompt) == [0, 1, 2]


def test_a_processor_without_numbers_writes_none(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    plain = Policy(build(Family, {"name": "minicpmv4_6", "model": str(tmp_path)}))
    for part in (plain.processor.image_processor, plain.processor.video_processor):
        part.use_image_id = False
    plain.processor.default_use_image_id = False
    prompt = ask("Compare.", (Noise(1), Noise(2)))
    assert numbers_in(plain, prompt) == []
    assert plain.encode(prompt).ids == processed(plain, prompt)["input_ids"][0].tolist()


def test_slices_of_pictures_and_of_frames_are_what_transformers_makes_of_them(policy: Policy) -> None:
    prompt = ask("Which way?", PICTURES, (Flicker(1, 3, (260, 130)),))
    shown = policy.encode(prompt).features
    sizes = {"image": "target_sizes", "video": "target_sizes_videos"}
    slices = [len(features.tensors[sizes[features.kind]]) for features in shown]
    assert slices == [5, 4, 1, 3 * 3]  # the whole picture and 4, 3 or no slices; each frame with 2
    compare(policy, prompt)


def test_a_pictures_cost_is_what_the_processor_makes(policy: Policy) -> None:
    for picture in PICTURES:
        cost = policy.family.picture_cost(policy.processor, policy.model.config, *picture.size)
        (features,) = policy.encode(ask("What?", (picture,))).features
        patches = features.tensors["target_sizes"].prod(-1)
        assert cost == PictureCost(features.num_embeds, int(patches.sum()), int(patches.max()))


@pytest.mark.parametrize("sizes", [{"patch": 14, "side": 448, "max_slices": 9}, {}])
@pytest.mark.parametrize(
    ("least", "most"), [(None, 60_000), (None, 900_000), (250_000, None), (90_000, 800_000)]
)
def test_bounds_hold_for_all_sizes_up_to_a_proportion(
    policy: Policy, sizes: dict[str, int], least: int | None, most: int | None
) -> None:
    """Least and most pixels of 3,000 pictures, at the release's sizes and at those of the tiny model."""
    family = dataclasses.replace(policy.family, min_pixels=least, max_pixels=most)
    assert isinstance(family, MiniCPMV46)
    processor = family.make_processor(policy.tokenizer, sizes or family.tiny_sizes(Tiny()))
    family.limit_pixels(processor, policy.model.config)
    draw, unit = random.Random(0), 14 * 14
    seen = []
    for _ in range(3000):
        short = draw.randint(8, 700)
        size = (short, int(short * draw.uniform(1, 16)))
        size = size if draw.random() < 0.5 else size[::-1]
        seen.append(unit * family.picture_cost(processor, policy.model.config, *size).patches)
    assert min(seen) >= (least or 0)
    assert max(seen) <= (most or max(seen))
    assert most is None or not sizes or max(seen) > most / 4, "no bound that shows nothing"


def test_bounds_that_cannot_be_kept_are_refused_with_one_that_can() -> None:
    with pytest.raises(
        ConfigError, match=r"^policy.max_pixels: 20000 cannot be kept: .* up to (\d+); "
    ) as said:
        policy_of("minicpmv4_6", max_pixels=20_000)
    found = re.search(r"up to (\d+)", str(said.value))
    assert found and policy_of("minicpmv4_6", max_pixels=int(found[1])).family.max_pixels == int(found[1])
    with pytest.raises(ConfigError, match=r"^policy.min_pixels: 50000 cannot be kept: under max_pixels "):
        policy_of("minicpmv4_6", max_pixels=60_000, min_pixels=50_000)
    with pytest.raises(ConfigError, match=r"^policy.video_max_pixels: 20000 cannot be kept: "):
        policy_of("minicpmv4_6", video_max_pixels=20_000)


def test_four_times_as_many_embeddings_and_two_that_differ(policy: Policy, tmp_path: Path) -> None:
    """`downsample_mode: 4x`, which skips the merger inside of the tower."""
    policy.save(tmp_path)
    folder = {"name": "minicpmv4_6", "model": str(tmp_path)}
    for file, times in (("processor_config.json", 2), ("config.json", 1)):
        text = (tmp_path / file).read_text()
        assert text.count('"downsample_mode": "16x"') == times
        (tmp_path / file).write_text(text.replace('"16x"', '"4x"'))
        if file == "processor_config.json":
            with pytest.raises(ConfigError, match="'4x', its config.json '16x'; set both alike"):
                Policy(build(Family, folder))
    finer = Policy(build(Family, folder))
    prompt = ask("Compare.", PICTURES[1:])
    counts = [[f.num_embeds for f in each.encode(prompt).features] for each in (policy, finer)]
    assert counts[1] == [4 * count for count in counts[0]]
    compare(finer, prompt)
