"""A reward that is never the same for all rollouts of a group, and depends on their tokens alone."""

import zlib
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Reward


@register("hash_of_tokens")
@dataclass(frozen=True, kw_only=True)
class HashOfTokens(Reward):
    """crc32 of the tokens, modulo 7, over 6. vlrl original (a test's own)."""

    def __call__(self, rollout):
        return zlib.crc32(repr(rollout.ids).encode()) % 7 / 6
