"""A tiny Qwen2.5-VL, a tiny text model with random weights, and prompts of every kind."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.types import Clip, Media, Prompt, Request, Row, Sampling


@dataclass(frozen=True)
class Noise(Media):
    """An image, or a video of `frames`, of random pixels."""

    seed: int
    size: tuple[int, int] = (56, 56)
    frames: int = 0

    @property
    def kind(self):
        return "video" if self.frames else "image"

    @property
    def key(self):
        return repr(self)

    def load(self):
        shape = (self.frames or 1, self.size[1], self.size[0], 3)
        pixels = np.random.default_rng(self.seed).integers(0, 255, shape, dtype=np.uint8)
        return Clip(pixels, 2.0) if self.frames else Image.fromarray(pixels[0])


def make_prompt(text="How many?", *media, prefix=""):
    images, videos = (
        tuple(m for m in media if m.kind == "image"),
        tuple(m for m in media if m.kind == "video"),
    )
    content = [{"type": m.kind} for m in images + videos] + [{"type": "text", "text": text}]
    row = Row(id=text, question=text, images=images, videos=videos)
    return Prompt(
        row=row, messages=({"role": "user", "content": content},), images=images, videos=videos, prefix=prefix
    )


def make_request(prompt, n=1, seed=0, prefix_ids=(), tag=None, **sampling):
    return Request(
        prompt=prompt, sampling=Sampling(**sampling), n=n, seed=seed, prefix_ids=tuple(prefix_ids), tag=tag
    )


def make_policy(name, **tiny):
    policy = Policy(build(Family, {"name": name, "tiny": {"std": 0.2, "layers": 3, "seed": 3, **tiny}}))
    return policy
