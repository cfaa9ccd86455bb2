"""Plug-ins that make trouble on request: a file in the folder TROUBLE says what happens next, and on which rank."""

import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from vlrl.registry import register
from vlrl.stages import Reward

NAMES = ("sleep", "memory")


def trouble(name: str) -> bool:
    """Whether the file `name` is there for this rank; then `name`.seen is made."""
    folder = Path(os.environ["TROUBLE"])
    asked = folder / name
    if not asked.is_file() or asked.read_text() not in ("", os.environ.get("RANK", "0")):
        return False
    (folder / f"{name}.seen").write_text(str(os.getpid()))
    return True


@register("troubled")
@dataclass(frozen=True, kw_only=True)
class Troubled(Reward):
    """crc32 of the tokens, modulo 7, over 6; sleeps, or runs out of memory, where a file asks for it."""

    def __call__(self, rollout):
        if trouble("sleep"):
            time.sleep(3600)
        if trouble("memory"):
            raise MemoryError
        return zlib.crc32(repr(rollout.ids).encode()) % 7 / 6
