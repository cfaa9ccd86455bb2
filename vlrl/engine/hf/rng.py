"""Random numbers by address: sample i of a request with seed s draws its p-th token with uniform number p of stream (s, i).

So a sample depends on its seed and index alone, not on what else is in the batch, nor on the order in which rows finish.
"""

from __future__ import annotations

import numpy as np


def uniforms(seed: int, index: int, count: int, start: int = 0) -> np.ndarray:
    """Numbers `start` .. `start + count - 1` of stream (seed, index): float64 in [0, 1), shape (count,). Philox, keyed by (seed, index)."""
    bits = np.random.Philox(key=[seed % 2**64, index % 2**64])
    return np.random.Generator(bits).random(start + count)[start:]
