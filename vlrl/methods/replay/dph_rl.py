"""Answers of the base model, kept to be remembered."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Replay
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("dph_rl")
@dataclass(frozen=True)
class BaseSamples(Replay):
    """The first `steps` steps are not trained on: prompts that the base model solves with a rate of at least `rate` are stored with their right
    completions.

    Afterwards a fresh group of such a prompt is replaced by the stored one (source "base"), whose tokens carry the base model's log-probs; all its
    rewards are equal, so only term `f_divergence` acts on it, and it does so on nothing else.
    Paper: Li et al. 2025 (DPH-RL), arXiv:2509.07430, sec. 4: D_pef and D_exp.  Deviates: the base is sampled by the run's first steps, not
    beforehand, so a prompt that they do not draw counts as D_exp; stored and fresh groups share a batch.
    State: the stored token ids and log-probs by row id, the same on all ranks.
    """

    steps: int = 2
    rate: float = 0.75
    threshold: float = 0.5
    store: dict[str, list[dict[str, Any]]] = field(init=False, default_factory=dict, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if not any(term.name == "f_divergence" for term in run.objective.terms.values()):
            raise ConfigError(
                "replay dph_rl puts stored base samples in place of fresh ones, and nothing learns from them; add terms: {f: {name: f_divergence}}"
            )

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        if self.run.phase_step < self.steps:
            self.store.update(self.run.gather([item for group in groups for item in self.solved(group)]))
            return []
        return [self.replayed(group) if group.row.id in self.store else group for group in groups]

    def solved(self, group: Group) -> list[tuple[str, list[dict[str, Any]]]]:
        """A group that the base model solves, as an entry of the store."""
        right = [rollout for rollout in group if rollout.reward > self.threshold]
        return [(group.row.id, [self.packed(rollout) for rollout in right])] if right and len(right) >= self.rate * len(group) else []

    def packed(self, rollout: Rollout) -> dict[str, Any]:
        """What of a rollout survives a restart."""
        return {"ids": rollout.ids, "logp": rollout.logp, "text": rollout.text, "reward": rollout.reward, "temperature": rollout.temperature}

    def replayed(self, group: Group) -> Group:
        """The stored completions of a group's prompt, as a group."""
        stored = deepcopy(self.store[group.row.id])
        top = max(item["reward"] for item in stored)
        rollouts = [Rollout(group.prompt, spaces=group.rollouts[0].spaces, source="base", **{**item, "reward": top}) for item in stored]
        return Group(group.prompt, rollouts, group.id, dict(group.info))

    def state_dict(self) -> dict[str, Any]:
        return {"store": deepcopy(self.store)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.store.clear()
        self.store.update(state["store"])
