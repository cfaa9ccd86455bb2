"""ExGRPO: experience replay of partially solved prompts with one of the policy's own earlier successes.

`exgrpo` is the prompt sampler that keeps the pool of prompts and their correct rollouts,
`exgrpo.with_experience` the rollout strategy that puts a stored rollout among the new samples. The loss is
`luffy.policy_shaping`.

Paper: Zhan et al. 2025 (ExGRPO), arXiv:2510.02245, sec. 4.1; checked against the release: ElliottYan/LUFFY at
01f4ae06, ExGRPO/exgrpo/verl/verl/mix_src/experience/*.py and ExGRPO/exp_scripts/run_exgrpo.sh (ratio 0.5,
start 0.35, bounds 0 and 7 of 8). Deviates: `keep` is ours (the release keeps all); log-probs are the
engine's; the mean entropy is over the tokens of the stored rollout, as the paper says (by the release's
mask it is a sum over prompt and rollout).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.core.aux_tensor import Entropy
from vlrl.methods.core.prompt_sampler import Shuffle, ShuffleState
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import StepCounts, transient
from vlrl.services.lazy import torch
from vlrl.types import Group, Prompt, Rollout, Row

TOLERANCE = 20  # mix_trainer_experience.py: BATCH_TOLERANCE
EXPERIENCE = Capability("exgrpo.experience", hint="prompt_sampler: {name: exgrpo}")


@dataclass
class ExgrpoState(ShuffleState):
    """The position in the data and the pool.

    `pool` maps row ids to {"position": of the row, "correct": number of correct rollouts when last seen,
    "rollouts": stored ones}; `retired` has rows that all rollouts solved, with the epoch in which they did;
    `open` says whether the pool is in use, `drawn` how many rows were drawn from it. Of the current step:
    `served` maps the ids of new rows to their positions, `replayed` has the ids of rows from the pool,
    `asked` is the number of rows.
    """

    pool: dict[str, dict[str, Any]] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)
    open: bool = False
    drawn: int = 0
    served: dict[str, int] = transient(factory=dict)
    replayed: set[str] = transient(factory=set)
    asked: int = transient(0)


@register("exgrpo")
@dataclass(frozen=True)
class Exgrpo(Shuffle):
    """ExGRPO's experience pool: floor(ratio * n) rows from a pool of prompts with lower < correct rollouts <=
    upper, the others as `shuffle`.

    A bucket (prompts with m correct rollouts when last seen) is drawn with weight exp(-(m - G/2)^2 / 2), a
    prompt within it uniformly, without replacement. The pool keeps a prompt's correct rollouts, at most
    `keep`, no text twice; prompts solved by all rollouts leave it for good and are not drawn in later epochs
    (while a step's rows and `TOLERANCE` are left); prompts solved by none do not enter. It opens for good
    once a step's share of correct rollouts exceeds `start`. All ranks learn from all groups, so their pools
    are equal.
    """

    state_class = ExgrpoState
    ratio: float = 0.5
    start: float = 0.35
    lower: int = 0
    upper: int = 7
    keep: int = 16
    provides = (EXPERIENCE,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio < 1 or self.keep < 1 or not 0 <= self.lower < self.upper:
            raise ConfigError(
                f"prompt_sampler: ratio={self.ratio} must be in [0, 1), keep={self.keep} at least 1, and 0 "
                f"<= lower={self.lower} < upper={self.upper}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.served.clear()
        self.state.replayed.clear()

    def __call__(self, n: int) -> list[Row]:
        state = self.state
        state.asked = n
        chosen = self.draw(int(self.ratio * n)) if state.open else []
        state.replayed = set(chosen)
        rows = super().__call__(n - len(chosen))
        return rows + [state.mixture.row(state.pool[key]["position"]) for key in chosen]

    def usable_row(self, position: int) -> Row | None:
        row, state = super().usable_row(position), self.state
        while row is not None and self.solved_before(row.id, position):
            state.position = position = position + 1
            row = super().usable_row(position)
        if row is not None:
            state.served[row.id] = position
        return row

    def solved_before(self, key: str, position: int) -> bool:
        """Whether a row was solved by all rollouts in an earlier epoch than that of the position, and enough
        others are left."""
        rows, retired = len(self.state.mixture), self.state.retired
        epoch = position // rows
        if retired.get(key, epoch) >= epoch:
            return False
        earlier = sum(solved < epoch for solved in retired.values())
        return rows - earlier > self.state.asked + TOLERANCE

    def draw(self, n: int) -> list[str]:
        """n row ids of the pool, or all that it has."""
        chosen = draw_from_buckets(self.state.pool, n, self.run.group_size, self.run.seed, self.state.drawn)
        self.state.drawn += len(chosen)
        return chosen

    def stored_rollouts(self, row: Row) -> list[dict[str, Any]]:
        """The stored rollouts of a row that the last call drew from the pool; none for other rows."""
        state = self.state
        return state.pool[row.id]["rollouts"] if row.id in state.replayed and row.id in state.pool else []

    def end_step(self, run: StepContext) -> None:
        state = self.state
        own = [
            rollout.correct
            for group in run.answered_groups
            for rollout in group
            if rollout.source == "policy"
        ]
        for group in run.answered_groups:
            self._retire(group)
            if state.open:
                self._learn(group)
        state.open = state.open or (bool(own) and sum(own) / len(own) > self.start)
        state.served.clear()

    def _retire(self, group: Group) -> None:
        """Note a row of the data that all rollouts solved."""
        key, state = group.row.id, self.state
        position = state.served.get(key, state.pool.get(key, {}).get("position"))
        if position is not None and len(group) and all(rollout.correct for rollout in group):
            state.pool.pop(key, None)
            state.retired.setdefault(key, max(state.position - 1, 0) // len(state.mixture))

    def _learn(self, group: Group) -> None:
        """Update the pool with the rollouts of a row."""
        key, state = group.row.id, self.state
        correct = [rollout for rollout in group if rollout.correct]
        if key in state.retired or not self.lower < len(correct) <= self.upper:
            return
        if key not in state.pool and key not in state.served:
            return  # a row that another plug-in made (a mirrored one): its position is not known
        entry = state.pool.setdefault(key, {"position": state.served.get(key), "rollouts": []})
        entry["correct"] = len(correct)
        add_rollouts(entry["rollouts"], correct, self.keep)
        if not entry["rollouts"]:
            del state.pool[key]

    def metrics(self) -> dict[str, float]:
        return {
            **super().metrics(),
            "data/pool": float(len(self.state.pool)),
            "data/retired": float(len(self.state.retired)),
        }


def bucket_weight(correct: int, n: int) -> float:
    """exp(-(correct - n / 2)^2 / 2): prompts that are solved half of the time are drawn most."""
    return math.exp(-((correct - n / 2) ** 2) / 2)


def draw_from_buckets(
    pool: Mapping[str, Mapping[str, Any]], n: int, group_size: int, seed: int, drawn: int
) -> list[str]:
    """n row ids, or all that there are: the bucket by weight, the prompt within it uniformly, without
    replacement. `drawn` were drawn before."""
    buckets: dict[int, list[str]] = {}
    for key, entry in pool.items():
        buckets.setdefault(entry["correct"], []).append(key)
    chosen: list[str] = []
    while buckets and len(chosen) < n:
        rng = random.Random(f"{seed}|experience|{drawn + len(chosen)}")
        correct = rng.choices(list(buckets), [bucket_weight(m, group_size) for m in buckets])[0]
        chosen.append(buckets[correct].pop(rng.randrange(len(buckets[correct]))))
        if not buckets[correct]:
            del buckets[correct]
    return chosen


def add_rollouts(stored: list[dict[str, Any]], correct: Sequence[Rollout], keep: int) -> None:
    """Add the policy's own correct rollouts whose text is new; the last `keep` stay."""
    known = {item["text"] for item in stored}
    for rollout in correct:
        if rollout.source == "policy" and rollout.text not in known:
            known.add(rollout.text)
            stored.append(
                {
                    "ids": rollout.ids,
                    "logp": rollout.logp,
                    "text": rollout.text,
                    "temperature": rollout.temperature,
                }
            )
    del stored[:-keep]


@register("exgrpo.with_experience")
@dataclass(frozen=True)
class ExgrpoWithExperience(Independent):
    """ExGRPO's mixed group: for a prompt from the pool n - 1 samples and the stored rollout (source "replay")
    with the lowest mean token entropy.

    Entropies are the present policy's (nats). A stored rollout keeps the log-probs and the temperature that
    it was sampled with. Edge: prompts with count 1 and new prompts are sampled as by `independent`; a single
    stored rollout needs no entropy. Logs the number of replayed rollouts.
    """

    state_class = StepCounts
    requires = (EXPERIENCE,)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        sampler: Any = run.prompt_sampler
        stored = [
            sampler.stored_rollouts(prompt.row) if count > 1 else []
            for prompt, count in zip(prompts, counts, strict=True)
        ]
        groups = super().__call__(prompts, [count - bool(items) for count, items in zip(counts, stored)], run)
        replayed = [
            [replayed_rollout(group.prompt, item, run) for item in items]
            for group, items in zip(groups, stored)
        ]
        entropies = iter(
            mean_entropies([r for rollouts in replayed if len(rollouts) > 1 for r in rollouts], run)
        )
        for group, rollouts in zip(groups, replayed):
            if rollouts:
                values = [next(entropies) for _ in rollouts] if len(rollouts) > 1 else [0.0]
                group.rollouts.append(rollouts[values.index(min(values))])
                self.state.add(replayed=1)
        return groups

    def metrics(self) -> dict[str, tuple[float, float]]:
        return self.state.totals("exgrpo", "replayed")


def replayed_rollout(prompt: Prompt, item: Mapping[str, Any], run: SamplingContext) -> Rollout:
    """A stored rollout of a prompt, with source "replay"."""
    rollout = Rollout(
        prompt,
        list(item["ids"]),
        item["text"],
        list(item["logp"]),
        source="replay",
        temperature=item["temperature"],
    )
    rollout.spaces, rollout.version = tuple(run.policy.spaces(prompt)), run.policy.version
    return rollout


def mean_entropies(rollouts: Sequence[Rollout], run: StageContext) -> list[float]:
    """The mean over a rollout's trained tokens of the present policy's entropy, in nats."""
    found: dict[int, float] = {}
    for part in (
        run.micro_batches([Group(rollout.prompt, [rollout]) for rollout in rollouts]) if rollouts else ()
    ):
        batch = run.batch(part)
        with torch.no_grad():
            entropy_BT = run.policy.forward(batch, [Entropy()])["entropy"]
        for rollout, row_T in zip(batch.rollouts, entropy_BT, strict=True):
            found[id(rollout)] = float(row_T[: len(rollout)].sum()) / max(
                rollout.trained_tokens, 1
            )  # 0 at other tokens
    return [found[id(rollout)] for rollout in rollouts]
