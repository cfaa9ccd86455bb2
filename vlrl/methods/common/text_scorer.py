"""A small network over hashed words, which learns scores of short texts while a run goes on: intrinsic
rewards and discriminators over observations and actions.

    features_of(texts, size)       (N, size) normalised counts of words and pairs of words
    text_scorer(size, width, seed) a module from these to (N,) scores

Importing needs no torch.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vlrl.services.lazy import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

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


def text_scorer(size: int, width: int, seed: int) -> Any:
    """s(x) = w2 . tanh(W1 x + b1) + b2 as a module, (N, size) to (N,); 0 everywhere at first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner, outer = nn.Linear(size, width), nn.Linear(width, 1)
    nn.init.zeros_(outer.weight)
    nn.init.zeros_(outer.bias)
    return nn.Sequential(inner, nn.Tanh(), outer, nn.Flatten(0))


def scores_of(scorer: Any, texts: Sequence[str], size: int) -> list[float]:
    """The scores of texts, without gradient."""
    if not texts:
        return []
    with torch.no_grad():
        return list(scorer(features_of(texts, size)).tolist())
