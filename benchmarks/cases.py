"""The cases of the training-step benchmark: prompts, pictures, completions and rewards, the same for both
sides."""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass
from typing import Any

from vlrl.types import Group, Media, Prompt, Rollout, Row


@dataclass(frozen=True)
class Case:
    """One measurement. `images` pictures of `pixels` x `pixels` per prompt, `text` words of prompt,
    completions of geometric length (mean `mean`)."""

    pixels: int = 0
    images: int = 0
    text: int = 30
    mean: int = 23
    longest: int = 64
    prompts: int = 2
    group: int = 8


CASES = {
    "image_112": Case(pixels=112, images=1),
    "image_336": Case(pixels=336, images=1),
    "image_672": Case(pixels=672, images=1, prompts=1),
    "images_4x224": Case(pixels=224, images=4),
    "text_long_prompt": Case(text=600),
    "long_completions": Case(pixels=112, images=1, mean=180, longest=256, prompts=1),
}


@dataclass(frozen=True)
class Stored(Media):
    """A picture as PNG bytes, decoded at each `load`."""

    data: bytes
    name: str
    kind = "image"

    @property
    def key(self) -> str:
        return self.name

    def load(self) -> Any:
        from PIL import Image

        image = Image.open(io.BytesIO(self.data))
        image.load()
        return image


def picture(seed: int, pixels: int) -> bytes:
    """A smooth random picture, as PNG."""
    import numpy as np
    from PIL import Image

    small = np.random.default_rng(seed).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((pixels, pixels), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def make_groups(case: Case, vocabulary: int, seed: int = 0) -> list[Group]:
    """Prompts with `case.group` completions of random tokens and 0/1 rewards that are never all equal."""
    rng = random.Random(seed)
    groups = []
    for p in range(case.prompts):
        question = (
            " ".join(
                rng.choice(("how", "many", "digits", "are", "there", "in", "the", "picture"))
                for _ in range(case.text)
            )
            + f" {p}?"
        )
        images = tuple(
            Stored(picture(100 * p + k, case.pixels), f"{p}-{k}-{case.pixels}") for k in range(case.images)
        )
        content = [{"type": "image"} for _ in images] + [{"type": "text", "text": question}]
        prompt = Prompt(Row(str(p), question, images=images), ({"role": "user", "content": content},), images)
        rollouts = []
        for k in range(case.group):
            length = min(case.longest, 1 + int(-case.mean * math.log(1 - rng.random())))
            rollouts.append(
                Rollout(prompt, [rng.randrange(vocabulary) for _ in range(length)], reward=float(k % 3 == 0))
            )
        groups.append(Group(prompt, rollouts))
    return groups
