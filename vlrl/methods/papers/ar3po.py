"""Attempts in stages, until one is right; and an earlier success where none is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.sampling_rounds import accuracy, right, score_rounds
from vlrl.methods.core.rollout import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "ar3po"


@register("ar3po")
@dataclass(frozen=True)
class Ar3po(Independent):
    """A prompt's n rollouts come in `stages` equal parts; after the first part with a right one it gets no more.

    Where none is right, one that an earlier step found (source "replay"; drawn evenly from the last `keep`) takes the place of the last wrong one.
    `learn` false (option II) trains on none of its tokens: it is there for the others' advantages alone. `learn` true (option I) trains on them with
    pi_old recomputed by the present policy.
    Paper: Zhang et al. 2025 (AR3PO), arXiv:2509.25808, from published notes on it (both parts, both options; option II did better); no code was
    found: `stages` and `keep` are ours. Right means a reward above `threshold` (of `slot`, or the total). What is kept lies in the run's history,
    learned from all ranks. Edge: a count that `stages` does not divide gives the first stages one more.
    """

    stages: int = 4
    keep: int = 2
    learn: bool = False
    slot: str = ""
    threshold: float = 0.5
    run: Any = field(init=False, default=None, repr=False, compare=False)
    counted: dict[str, float] = field(init=False, default_factory=lambda: {"reused": 0.0, "spared": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.stages < 1 or self.keep < 0:
            raise ValueError(f"stages={self.stages} must be at least 1, and keep={self.keep} not negative (0: no reuse)")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = [Group(prompt, []) for prompt in prompts]
        solved = [False] * len(groups)
        for stage in range(self.stages):
            sizes = [0 if done else n // self.stages + (stage < n % self.stages) for n, done in zip(counts, solved)]
            new = score_rounds(groups, self.draw([(prompt, n, ()) for prompt, n in zip(prompts, sizes)], run), run)
            solved = [done or accuracy(rollouts, self.threshold, self.slot) > 0 for done, rollouts in zip(solved, new)]
        self.counted["spared"] += sum(counts) - sum(map(len, groups))
        for group, done in zip(groups, solved):
            if len(group) and not done:
                self.reuse(group, run)
        return groups

    def reuse(self, group: Group, run: RunContext) -> None:
        """Put a stored success in the place of the last rollout."""
        kept = run.history.get(group.row.id, {}).get(KEY, [])
        if not kept:
            return
        item = random.Random(f"{run.seed}/{KEY}/{run.step}/{group.row.id}").choice(kept)
        stored = Rollout(group.prompt, list(item["ids"]), item["text"], source="replay", temperature=item["temperature"],
                         spaces=tuple(run.policy.spaces(group.prompt)), version=run.policy.version)  # fmt: skip
        stored.loss_mask = None if self.learn else [False] * len(stored)
        group.rollouts[-1] = stored
        self.counted["reused"] += 1

    def end_step(self, run: RunContext) -> None:
        groups = run.sampled_groups
        for group in groups if self.keep else ():
            new = [rollout for rollout in group if rollout.source == "policy" and right(rollout, self.threshold, self.slot)]
            if new:
                memory = self.run.history.setdefault(group.row.id, {})
                items = [{"ids": list(r.ids), "text": r.text, "temperature": r.temperature} for r in new]
                memory[KEY] = [*memory.get(KEY, []), *items][-self.keep :]

    def metrics(self) -> dict[str, tuple[float, float]]:
        """This step's rollouts that were not needed, and the successes that were taken from earlier steps."""
        out = {f"staged/{name}": (value, 0.0) for name, value in self.counted.items()}
        self.counted.update(reused=0.0, spared=0.0)
        return out
