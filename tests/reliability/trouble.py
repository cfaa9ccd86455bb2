"""Plug-ins that make trouble on request: a file in the folder TROUBLE names the trouble and the rank that has
it."""

import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from vlrl.engine.hf.engine import HF
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward


def trouble(place: str) -> None:
    """Sleep where there is a file `sleep-<place>`, run out of memory where there is `memory-<place>`, on the
    rank that it holds ("": on all)."""
    for kind in ("sleep", "memory"):
        asked = Path(os.environ["TROUBLE"]) / f"{kind}-{place}"
        if asked.is_file() and asked.read_text() in ("", os.environ.get("RANK", "0")):
            asked.with_suffix(".seen").write_text(str(os.getpid()))
            if kind == "memory":
                raise MemoryError
            time.sleep(3600)


@register("troubled")
@dataclass(frozen=True, kw_only=True)
class Troubled(Reward):
    """crc32 of the tokens, modulo 7, over 6. vlrl original (a test's own)."""

    def __call__(self, rollout):
        trouble("reward")
        return zlib.crc32(repr(rollout.ids).encode()) % 7 / 6


@register("hf_with_trouble")
@dataclass(frozen=True)
class HfWithTrouble(HF):
    """The engine `hf`, with trouble in sampling, after the update of a step, and while a checkpoint is
    made."""

    def generate(self, requests):
        trouble("sampling")
        return super().generate(requests)

    def sync(self, policy):
        trouble("step")
        super().sync(policy)

    def state_dict(self):
        trouble("checkpoint")
        return super().state_dict()
