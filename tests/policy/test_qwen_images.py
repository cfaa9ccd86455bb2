"""Qwen-VL's pictures go through the image processor alone, with the result of the whole processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.policy import Family, Policy
from vlrl.policy.families.vision import VisionFamily
from vlrl.registry import build
from vlrl.types import Media

TINY = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32, "vision_hidden": 32, "vision_layers": 1, "vision_heads": 2}


@dataclass(frozen=True)
class Shown(Media):
    """A random picture."""

    size: tuple[int, int]
    mode: str = "RGB"
    kind = "image"

    @property
    def key(self) -> str:
        return f"{self.size}-{self.mode}"

    def load(self) -> Any:
        width, height = self.size
        return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)).convert(self.mode)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_image_processor_alone_gives_what_the_whole_processor_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = build(Family, {"name": name, "tiny": TINY, "max_pixels": 40_000})
    processor = Policy(family).processor
    assert isinstance(family, VisionFamily)
    shown = [Shown((28, 28)), Shown((84, 30)), Shown((300, 500)), Shown((56, 84), "L"), Shown((57, 85), "RGBA")]
    whole = [VisionFamily.process_image(family, processor, medium, True) for medium in shown]
    monkeypatch.setattr(type(processor), "__call__", lambda *_, **__: pytest.fail("the whole processor was called"))
    for medium, theirs in zip(shown, whole, strict=True):
        ours = family.process(processor, medium)
        told = [(f.key, f.kind, f.text, f.space, f.num_embeds, list(f.tensors)) for f in (ours, theirs)]
        assert told[0][:5] == told[1][:5] and set(told[0][5]) == set(told[1][5])
        for tensor, value in theirs.tensors.items():
            torch.testing.assert_close(ours.tensors[tensor], value, rtol=0, atol=0)
    assert whole[2].space.seen != whole[2].space.original, "one picture was made smaller"
