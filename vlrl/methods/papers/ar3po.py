"""AR3PO: adaptive rollout (attempts in stages until one is correct) and response reuse (an earlier success
where none is).

`ar3po` is a rollout strategy; both parts are in it.

Paper: Zhang et al. 2025 (AR3PO), arXiv:2509.25808, from published notes on it (both parts, both options;
option II did better); no code was found: `stages` and `keep` are ours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.rollout import Independent, score_into_groups
from vlrl.plugins.contexts import SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt, Rollout

KEY = "ar3po"  # of a row's memory in the run's history


@register("ar3po")
@dataclass(frozen=True)
class Ar3po(Independent):
    """AR3PO: samples a prompt's n rollouts in `stages` equal parts and stops after the first part with a
    correct one.

    Where none of the n is correct, a correct rollout of an earlier step (source "replay"; drawn uniformly
    from the last `keep` of the row) takes the place of the last one. `learn` false (option II) trains on none
    of its tokens: it only enters the others' advantages. `learn` true (option I) trains on them, with pi_old
    recomputed by the current policy.
    Correct rollouts are kept in the run's history, those of all ranks. Edge: a count that `stages` does not
    divide gives the first stages one more.
    """

    state_class = StepCounts
    stages: int = 4
    keep: int = 2
    learn: bool = False
    visits = 2

    def __post_init__(self) -> None:
        if self.stages < 1 or self.keep < 0:
            raise ValueError(
                f"stages={self.stages} must be at least 1, and keep={self.keep} not negative (0: no reuse)"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = [Group(prompt, []) for prompt in prompts]
        solved = [False] * len(groups)
        for stage in range(self.stages):
            sizes = [
                0 if done else n // self.stages + (stage < n % self.stages) for n, done in zip(counts, solved)
            ]
            new = score_into_groups(
                groups, self.draw([(prompt, n, ()) for prompt, n in zip(prompts, sizes)], run), run
            )
            solved = [
                done or any(rollout.correct for rollout in rollouts) for done, rollouts in zip(solved, new)
            ]
        self.state.add(skipped=sum(counts) - sum(map(len, groups)))
        for group, done in zip(groups, solved):
            if len(group) and not done:
                self.reuse(group, run)
        return groups

    def reuse(self, group: Group, run: StageContext) -> None:
        """Replace the last rollout by a stored correct one, if the row has any."""
        kept = run.history.get(group.row.id, {}).get(KEY, [])
        if not kept:
            return
        item = random.Random(f"{run.seed}/{KEY}/{run.step}/{group.row.id}").choice(kept)
        stored = Rollout(
            group.prompt,
            list(item["ids"]),
            item["text"],
            source="replay",
            temperature=item["temperature"],
            spaces=tuple(run.policy.spaces(group.prompt)),
            version=run.policy.version,
        )
        if not self.learn:
            stored.leave_out([False] * len(stored))
        group.rollouts[-1] = stored
        self.state.add(reused=1)

    def end_step(self, run: StepContext) -> None:
        for group in run.sampled_groups if self.keep else ():
            correct = [rollout for rollout in group if rollout.source == "policy" and rollout.correct]
            if correct:
                memory = run.history.setdefault(group.row.id, {})
                items = [{"ids": list(r.ids), "text": r.text, "temperature": r.temperature} for r in correct]
                memory[KEY] = [*memory.get(KEY, []), *items][-self.keep :]
        super().end_step(run)

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The step's reused successes, and its rollouts that were not sampled."""
        return self.state.totals("ar3po", "reused", "skipped")
