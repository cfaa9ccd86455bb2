"""A reward that differs within every group and depends on its tokens alone; a gate that counts what its rank
sees; a slow engine."""

import time
import zlib
from dataclasses import dataclass, field

from vlrl.engine.fake import Fake
from vlrl.plugins.registry import register
from vlrl.plugins.stages import GroupFilter, Reward
from vlrl.types import FilterDecision


@register("hash_of_tokens")
@dataclass(frozen=True, kw_only=True)
class HashOfTokens(Reward):
    """crc32 of the tokens, modulo 7, over 6. vlrl original (a test's own)."""

    def __call__(self, rollout):
        return zlib.crc32(repr(rollout.ids).encode()) % 7 / 6


@register("bit_of_tokens")
@dataclass(frozen=True, kw_only=True)
class BitOfTokens(Reward):
    """crc32 of the tokens, modulo 2. vlrl original (a test's own)."""

    def __call__(self, rollout):
        return float(zlib.crc32(repr(rollout.ids).encode()) % 2)


@register("seen_here")
@dataclass(frozen=True)
class SeenHere(GroupFilter):
    """Keeps every group. vlrl original (a test's own)."""

    seen: list[float] = field(init=False, default_factory=list, repr=False, compare=False)

    def __call__(self, group):
        self.seen.extend(group.rewards)
        return FilterDecision(True)

    def metrics(self):
        return {
            "seen": (len(self.seen), 0.0),
            "seen/mean": (sum(self.seen), len(self.seen)),
            "seen/constant": 0.3,
        }


@register("slow_fake")
@dataclass(frozen=True)
class SlowFake(Fake):
    """Engine `fake`, a third of a second later. vlrl original (a test's own)."""

    def generate(self, requests):
        time.sleep(0.3)
        return super().generate(requests)
