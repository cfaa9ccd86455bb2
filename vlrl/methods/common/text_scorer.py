"""A small network over hashed words, which learns scores of short texts while a run goes on: intrinsic
rewards and discriminators over observations and actions.

    features_of(texts, size)      (N, size) normalised counts of words and pairs of words
    TextScorer(size, width, seed) (N,) scores

Torch is imported with this module; plug-ins import it where they need it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

_WORD = re.compile(r"\w+|[^\w\s]")


@lru_cache(maxsize=8192)
def _row(text: str, size: int) -> Tensor:
    words = _WORD.findall(text.casefold())
    counts = [0.0] * size
    for piece in [*words, *(f"{a} {b}" for a, b in zip(words, words[1:]))]:
        counts[zlib.crc32(piece.encode()) % size] += 1.0
    row = torch.tensor(counts)
    return row / row.norm().clamp(min=1.0)


def features_of(texts: Iterable[str], size: int) -> Tensor:
    """Counts of hashed words and pairs of neighbouring words, each row of length 1 (0 of an empty text);
    (N, size)."""
    rows = [_row(text, size) for text in texts]
    return torch.stack(rows) if rows else torch.zeros(0, size)


class TextScorer(nn.Module):
    """s(x) = w2 . tanh(W1 x + b1) + b2; 0 everywhere at first."""

    def __init__(self, size: int, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.inner, self.outer = nn.Linear(size, width), nn.Linear(width, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, features_NF: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(features_NF)))[:, 0]


def scores_of(scorer: TextScorer, texts: Sequence[str]) -> list[float]:
    """The scores of texts, without gradient."""
    if not texts:
        return []
    with torch.no_grad():
        return scorer(features_of(texts, scorer.inner.in_features)).tolist()
