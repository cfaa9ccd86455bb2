"""Qwen-VL's pictures go through the image processor alone, with the result of the whole processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from samples import Noise

from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.policy.families.vision import VisionFamily

TINY = {
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "intermediate": 32,
    "vision_hidden": 32,
    "vision_layers": 1,
    "vision_heads": 2,
}
SHOWN = [((28, 28), "RGB"), ((84, 30), "RGB"), ((300, 500), "RGB"), ((56, 84), "L"), ((57, 85), "RGBA")]


@dataclass(frozen=True)
class Shown(Noise):
    """A random picture of a mode of PIL."""

    mode: str = "RGB"

    def load(self) -> Any:
        return super().load().convert(self.mode)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_image_processor_alone_gives_what_the_whole_processor_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = build(Family, {"name": name, "tiny": TINY, "max_pixels": 40_000})
    processor = Policy(family).processor
    assert isinstance(family, VisionFamily)
    shown = [Shown(0, size, mode) for size, mode in SHOWN]
    whole = [VisionFamily.process_image(family, processor, medium, True) for medium in shown]
    monkeypatch.setattr(
        type(processor), "__call__", lambda *_, **__: pytest.fail("the whole processor was called")
    )
    for medium, theirs in zip(shown, whole, strict=True):
        ours = family.process(processor, medium)
        told = [(f.key, f.kind, f.text, f.space, f.num_embeds, list(f.tensors)) for f in (ours, theirs)]
        assert told[0][:5] == told[1][:5] and set(told[0][5]) == set(told[1][5])
        for tensor, value in theirs.tensors.items():
            torch.testing.assert_close(ours.tensors[tensor], value, rtol=0, atol=0)
    assert whole[2].space.seen != whole[2].space.original, "one picture was made smaller"
