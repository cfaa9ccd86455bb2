"""One policy, several ways of being asked.

The expert that fails learns what the one that succeeds said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.common.sampling_rounds import with_system
from vlrl.methods.core.rollout import Independent
from vlrl.methods.papers.relift import Relift
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

SYSTEMS = ("Give a short solution.", "Think at length, and check each step.", "Look for another way before you answer.")


@register("meml_grpo")
@dataclass(frozen=True)
class MemlGrpo(Independent):
    """Rollout i of a prompt is asked with system prompt i mod K; all n are one group, and `info["expert"]` says whose a rollout is.

    Paper: Jia et al. 2025 (MEML-GRPO), arXiv:2508.09670, from published notes on it: each of three system prompts samples n / 3. No code was found.
    Deviates: the prompts are ours, and the advantage is taken over all of them (the notes say per expert). The policy should have been taught the
    styles first (the paper's multi-expert fine-tuning). Edge: a count below K leaves experts out.
    """

    systems: tuple[str, ...] = SYSTEMS

    def __post_init__(self) -> None:
        if len(set(self.systems)) < 2 or len(set(self.systems)) < len(self.systems):
            raise ValueError(f"systems={self.systems} must be at least two different system prompts")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
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


@register("meml_grpo.mutual")
@dataclass(frozen=True)
class MemlGrpoMutual(Relift):
    """As `hard_buffer`; and where the best expert of a group has a right rollout and the worst a lower mean reward, that rollout as the worst's.

    It is the first right one, under the worst expert's prompt (source "taught"), alone in a group, so that only term nll with source "taught" learns
    it: -log p(o+ | q, P-), whose gradient is that of the estimate of KL(p(. | P+) || p(. | P-)) with the better expert held fixed.
    Paper: Jia et al. 2025 (MEML-GRPO), arXiv:2508.09670, from published notes on it (mutual learning between best and worst expert; a buffer of 64
    hard examples). No code was found. Deviates: the buffer holds prompts that every rollout failed, not single experts, and without chance.
    Right means a reward above `threshold`. Needs strategy `experts`. Edge: equal means teach nothing; the first of equals is best or worst.
    """

    threshold: float = 0.5

    def check(self, run: RunContext) -> None:
        super().check(run)
        if run.rollout.name != "meml_grpo":
            raise ConfigError(
                f"replay mutual lets experts teach each other, and strategy {run.rollout.name!r} has none; use strategy: {{name: experts}}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        taught = [Group(rollout.prompt, [rollout], f"{group.id}/taught") for group in groups if (rollout := self.lesson(group)) is not None]
        self.counts["taught"] = self.counts.get("taught", 0.0) + len(taught)
        return [*super().__call__(groups), *taught]

    def lesson(self, group: Group) -> Rollout | None:
        """What the worst expert of a group is taught."""
        by: dict[int, list[Rollout]] = {}
        for rollout in group:
            by.setdefault(rollout.info.get("expert", 0), []).append(rollout)
        means = {expert: sum(r.reward for r in rollouts) / len(rollouts) for expert, rollouts in by.items()}
        if len(means) < 2 or min(means.values()) == max(means.values()):
            return None
        best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        right = next((rollout for rollout in by[best] if rollout.reward > self.threshold), None)
        if right is None:
            return None
        return Rollout(by[worst][0].prompt, list(right.ids), right.text, finish=right.finish, source="taught", version=right.version,
                       spaces=right.spaces, temperature=right.temperature, reward=right.reward, rewards=dict(right.rewards))  # fmt: skip

    def metrics(self) -> dict[str, tuple[float, float]]:
        out = super().metrics()
        self.counts["taught"] = 0.0
        return out
