"""Prompts that were solved now and then, with their right rollouts: row id to `right` (rollouts, when last seen), `position`, `rollouts`."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl.types import Rollout


def bucket_weight(right: int, n: int) -> float:
    """exp(-(right - n / 2)^2 / 2): buckets of prompts that are solved half of the time are drawn most."""
    return math.exp(-((right - n / 2) ** 2) / 2)


def draw(pool: Mapping[str, Mapping[str, Any]], n: int, size: int, seed: int, drawn: int) -> list[str]:
    """n row ids, or all that there are: the bucket by weight, the prompt within it uniformly, without replacement. `drawn` were drawn before."""
    buckets: dict[int, list[str]] = {}
    for key, entry in pool.items():
        buckets.setdefault(entry["right"], []).append(key)
    chosen: list[str] = []
    while buckets and len(chosen) < n:
        rng = random.Random(f"{seed}|experience|{drawn + len(chosen)}")
        right = rng.choices(list(buckets), [bucket_weight(m, size) for m in buckets])[0]
        chosen.append(buckets[right].pop(rng.randrange(len(buckets[right]))))
        if not buckets[right]:
            del buckets[right]
    return chosen


def remember(kept: list[dict[str, Any]], right: Sequence[Rollout], most: int) -> None:
    """Add the policy's own right rollouts whose text is new; the last `most` stay."""
    known = {item["text"] for item in kept}
    for rollout in right:
        if rollout.source == "policy" and rollout.text not in known:
            known.add(rollout.text)
            kept.append({"ids": rollout.ids, "logp": rollout.logp, "text": rollout.text, "temperature": rollout.temperature})
    del kept[:-most]
