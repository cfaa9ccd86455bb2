"""One policy, several ways of being asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.strategy._rounds import with_system
from vlrl.methods.strategy.independent import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.run import Run

SYSTEMS = ("Give a short solution.", "Think at length, and check each step.", "Look for another way before you answer.")


@register("experts")
@dataclass(frozen=True)
class Experts(Independent):
    """Rollout i of a prompt is asked with system prompt i mod K; all n are one group, and `info["expert"]` says whose a rollout is.

    Paper: Jia et al. 2025 (MEML-GRPO), arXiv:2508.09670, from published notes on it: each of three system prompts samples n / 3. No code was found.
    Deviates: the prompts are ours, and the advantage is taken over all of them (the notes say per expert). The policy should have been taught the
    styles first (the paper's multi-expert fine-tuning). Edge: a count below K leaves experts out.
    """

    systems: tuple[str, ...] = SYSTEMS

    def __post_init__(self) -> None:
        if len(set(self.systems)) < 2 or len(set(self.systems)) < len(self.systems):
            raise ValueError(f"systems={self.systems} must be at least two different system prompts")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        k = len(self.systems)
        wanted = []
        for prompt, n in zip(prompts, counts, strict=True):
            wanted += [(with_system(prompt, system), n // k + (i < n % k), ()) for i, system in enumerate(self.systems)]
        drawn = self.draw(wanted, run)
        groups = []
        for place, prompt in enumerate(prompts):
            rollouts = []
            for expert, answers in enumerate(drawn[place * k : (place + 1) * k]):
                for rollout in answers:
                    rollout.info["expert"] = expert
                    rollouts.append(rollout)
            groups.append(Group(prompt, rollouts))
        return groups
