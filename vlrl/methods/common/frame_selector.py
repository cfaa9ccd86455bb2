"""An agent that scores the frames of a video for a question (TSPO's temporal agent), and the features that it
reads.

Shapes: T frames, D features.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vlrl.plugins.registry import ConfigError

TINY = "tiny"  # as encoder: fixed random features, for tests and proofs
TINY_SIZE, TINY_GRID = 64, 8
CLIP_BATCH = 32


class TinyEncoder:
    """Random features: a fixed projection of each frame at 8 x 8 pixels (T, D), and a vector drawn by the
    question's text (D,)."""

    size = TINY_SIZE

    def __init__(self, device: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(3 * TINY_GRID**2, TINY_SIZE, generator=generator).to(device)

    def images(self, frames_THWC: np.ndarray) -> Tensor:
        pixels_T3HW = (
            torch.from_numpy(np.ascontiguousarray(frames_THWC)).permute(0, 3, 1, 2).float() / 255 - 0.5
        )
        small = nn.functional.adaptive_avg_pool2d(pixels_T3HW, TINY_GRID).flatten(1).to(self.weight.device)
        return small @ self.weight / math.sqrt(len(self.weight))

    def text(self, question: str) -> Tensor:
        seed = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=4).digest(), "little")
        drawn = torch.randn(self.size, generator=torch.Generator().manual_seed(seed))
        return drawn.to(self.weight.device)


class ClipEncoder:
    """A CLIP model of transformers, frozen."""

    def __init__(self, model: str, device: Any) -> None:
        from transformers import CLIPModel, CLIPProcessor

        try:
            self.model = CLIPModel.from_pretrained(model).to(device).eval().requires_grad_(False)
            self.processor = CLIPProcessor.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"rollout.encoder: {model!r} could not be loaded as a CLIP model of transformers "
                f"({str(error).splitlines()[0]}); name a folder, a hub id such as "
                "openai/clip-vit-large-patch14, or 'tiny' for random features"
            ) from None
        self.size = int(self.model.config.projection_dim)

    def images(self, frames_THWC: np.ndarray) -> Tensor:
        parts = []
        for begin in range(0, len(frames_THWC), CLIP_BATCH):
            given = self.processor(images=list(frames_THWC[begin : begin + CLIP_BATCH]), return_tensors="pt")
            parts.append(features(self.model.get_image_features(**given.to(self.model.device))))
        return torch.cat(parts)

    def text(self, question: str) -> Tensor:
        given = self.processor(text=question, return_tensors="pt", padding=True, truncation=True)
        return features(self.model.get_text_features(**given.to(self.model.device)))[0]


FrameEncoder = TinyEncoder | ClipEncoder  # frozen features of frames and questions in one space


def features(found: Any) -> Tensor:
    """The projected features (B, D): some versions of transformers wrap them."""
    return (found if isinstance(found, Tensor) else found.pooler_output).float()


def open_encoder(name: str, device: Any) -> FrameEncoder:
    """The encoder of a name: "tiny", a folder or a hub id. Raises ConfigError where it cannot be loaded."""
    return TinyEncoder(device) if name == TINY else ClipEncoder(name, device)


def window_mask(frames: int, window: int) -> Tensor:
    """(T, T) bool: frame j attends to j - window / 2 .. j + (window - 1) / 2, kept within the video."""
    place_T = torch.arange(frames)
    near = place_T[:, None] - window // 2 + torch.arange(window)[None]
    return torch.zeros(frames, frames, dtype=torch.bool).scatter_(1, near.clamp(0, frames - 1), True)


def place_code(frames: int, size: int) -> Tensor:
    """(T, D): sines and cosines of t / T at the frequencies 10000^(-d / D)."""
    frequency = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    angle = torch.arange(frames)[:, None] / frames * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :size]


class FrameSelector(nn.Module):
    """TSPO's agent: score_t = cos(v_t + MLP(attention(v + place)_t), q) + cos(v_t, q), with attention over a
    window of frames. v are the frames' features, q the question's."""

    def __init__(self, size: int, heads: int, window: int, seed: int) -> None:
        super().__init__()
        if size % heads:
            raise ConfigError(f"rollout.heads: {heads} does not divide the {size} features of the encoder")
        self.heads, self.window = heads, window
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
            self.mlp = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))

    def forward(self, image_TD: Tensor, text_D: Tensor) -> Tensor:
        """(T,) scores, between -2 and 2."""
        frames, size = image_TD.shape
        placed_TD = image_TD + place_code(frames, size).to(image_TD)
        query, key, value = (
            part(placed_TD).view(1, frames, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mask = window_mask(frames, self.window).to(image_TD.device)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        out_TD = self.mlp(attended.transpose(1, 2).reshape(frames, size)) + image_TD
        cosine = nn.functional.cosine_similarity
        return cosine(out_TD, text_D[None], -1) + cosine(image_TD, text_D[None], -1)
