"""Prompts that were solved now and then, with their right rollouts: row id to `right` (rollouts, when last seen), `position`, `rollouts`.

Half new prompts, half such as were solved now and then before.

One of a prompt's own earlier successes among its new samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Rollout, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


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


LEARNED: dict[str, Any] = {"pool": {}, "retired": {}, "open": False, "drawn": 0}


@register("exgrpo")
@dataclass(frozen=True)
class Exgrpo(Shuffle):
    """floor(ratio * n) rows from a pool of prompts with lower < right rollouts <= upper, the others as `shuffle` gives them.

    A bucket (prompts with m right rollouts when last seen) is drawn with weight exp(-(m - G/2)^2 / 2), a prompt within it uniformly, without
    replacement. The pool keeps a prompt's right rollouts, `keep` at most, no text twice; prompts solved by all rollouts leave it for good, prompts
    solved by none do not enter. It opens for good once a step's mean accuracy exceeds `start`. Strategy `experience` puts what is kept to use.
    Paper: Zhan et al. 2025 (ExGRPO), arXiv:2510.02245, sec. 4.1; checked against copies of the released experience_* and weighted_bucket_sampler
    files: ratio 0.5, start 0.35, bounds 0 and 7 of 8, sigma 1. Deviates: `keep` is ours (the release keeps all); log-probs are the engine's.
    Right means a reward above `threshold`. All ranks learn from all groups, so their pools are equal. State: the pool and the position.
    """

    ratio: float = 0.5
    start: float = 0.35
    lower: int = 0
    upper: int = 7
    keep: int = 16
    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio < 1 or self.keep < 1 or not 0 <= self.lower < self.upper:
            raise ConfigError(
                f"prompt_sampler: ratio={self.ratio} must be in [0, 1), keep={self.keep} at least 1, and 0 <= lower={self.lower} < upper={self.upper}"
            )

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self._state.update({**deepcopy(LEARNED), **self._state}, seed=run.seed, size=run.group_size, served={}, replayed=set())

    def __call__(self, n: int) -> list[Row]:
        chosen = self.draw(int(self.ratio * n)) if self._state["open"] else []
        self._state["replayed"] = set(chosen)
        rows = super().__call__(n - len(chosen))
        pool, mixture = self._state["pool"], self._state["mixture"]
        return rows + [mixture.row(pool[key]["position"]) for key in chosen]

    def _try(self, position: int) -> Row | None:
        row = super()._try(position)
        if row is not None:
            self._state["served"][row.id] = position
        return row

    def draw(self, n: int) -> list[str]:
        """n row ids of the pool, or all that it has."""
        chosen = draw(self._state["pool"], n, self._state["size"], self._state["seed"], self._state["drawn"])
        self._state["drawn"] += len(chosen)
        return chosen

    def kept(self, row: Row) -> list[dict[str, Any]]:
        """The stored rollouts of a row that was drawn from the pool in the present call; else nothing."""
        return self._state["pool"][row.id]["rollouts"] if row.id in self._state["replayed"] and row.id in self._state["pool"] else []

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        state = self._state
        own = [rollout.reward > self.threshold for group in groups for rollout in group if rollout.source == "policy"]
        if state["open"]:
            for group in groups:
                self._learn(group)
        state["open"] = state["open"] or (bool(own) and sum(own) / len(own) > self.start)
        state["served"].clear()

    def _learn(self, group: Group) -> None:
        key, pool = group.row.id, self._state["pool"]
        right = [rollout for rollout in group if rollout.reward > self.threshold]
        if len(group) and len(right) == len(group):
            pool.pop(key, None)
            self._state["retired"][key] = True
        if key in self._state["retired"] or not self.lower < len(right) <= self.upper:
            return
        if key not in pool and key not in self._state["served"]:
            return  # a row of another making (a mirrored one): there is no way back to it
        entry = pool.setdefault(key, {"position": self._state["served"].get(key), "rollouts": []})
        entry["right"] = len(right)
        remember(entry["rollouts"], right, self.keep)
        if not entry["rollouts"]:
            del pool[key]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **{key: self._state[key] for key in LEARNED if key in self._state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._state.update({key: state[key] for key in LEARNED if key in state})

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "data/pool": float(len(self._state["pool"])), "data/retired": float(len(self._state["retired"]))}


@register("exgrpo.with_experience")
@dataclass(frozen=True)
class ExgrpoWithExperience(Independent):
    """Prompts that sampler `experience` drew from its pool: n - 1 samples and the stored rollout (source "replay") with the least mean -log pi.

    Paper: Zhan et al. 2025 (ExGRPO), arXiv:2510.02245, sec. 4.1: the trajectory that the present policy is surest of. Deviates: the paper and its
    script take the lowest mean entropy; the release's other measure, the perplexity of the stored tokens, needs no distribution and is taken here.
    A stored rollout keeps the log-probs and the temperature that it was sampled with. Edge: count 1 and new prompts are sampled as ever; a single
    stored rollout is not scored.
    """

    def check(self, run: RunContext) -> None:
        if run.prompt_sampler.name != "exgrpo":
            raise ConfigError(f"strategy 'experience' takes what sampler 'experience' keeps; the sampler is {run.prompt_sampler.name!r}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        sampler: Any = run.prompt_sampler
        kept = [sampler.kept(prompt.row) if count > 1 else [] for prompt, count in zip(prompts, counts, strict=True)]
        groups = super().__call__(prompts, [count - bool(items) for count, items in zip(counts, kept)], run)
        asked = [(group.prompt, item["ids"]) for group, items in zip(groups, kept) if len(items) > 1 for item in items]
        scores = iter(run.engine.score_all(asked) if asked else [])
        for group, items in zip(groups, kept):
            if not items:
                continue
            surest = [-math.fsum(logp) / len(logp) for logp in (next(scores) for _ in items)] if len(items) > 1 else [0.0]
            item = items[surest.index(min(surest))]
            group.rollouts.append(
                Rollout(group.prompt, list(item["ids"]), item["text"], list(item["logp"]), source="replay", temperature=item["temperature"],
                        spaces=tuple(run.policy.spaces(group.prompt)), version=run.policy.version)
            )  # fmt: skip
        return groups
