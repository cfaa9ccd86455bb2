"""MEML-GRPO: multi-expert mutual learning. Several system prompts are experts of one policy; the worst expert
of a prompt learns from the best.

    meml_grpo          rollout strategy: each expert samples a part of the group
    meml_grpo.mutual   replay buffer: mutual learning, and demonstrations of prompts that all experts fail

Paper: Jia et al. 2025 (MEML-GRPO), arXiv:2508.09670, from published notes on it. No code was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.hard_prompts import HardPrompts, HardPromptsState
from vlrl.methods.common.prompts import with_system
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext, StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import transient
from vlrl.types import Group, Prompt, Rollout

SYSTEMS = (
    "Give a short solution.",
    "Think at length, and check each step.",
    "Look for another way before you answer.",
)
EXPERT: Annotation[int] = Annotation(
    "meml_grpo.expert", int, hint="rollout: {name: meml_grpo}", doc="number of the system prompt, from 0"
)


@register("meml_grpo")
@dataclass(frozen=True)
class MemlGrpo(Independent):
    """MEML-GRPO's experts: rollout i of a prompt is sampled with system prompt i mod K; all n are one group,
    and EXPERT is the number of the prompt.

    Paper: Jia et al. 2025 (MEML-GRPO), arXiv:2508.09670, from published notes on it: each of three system
    prompts samples n / 3. No code was found. Deviates: the prompts are ours, and the advantage is taken over
    all experts (the notes say per expert). The policy should have been taught the styles first (the paper's
    multi-expert fine-tuning). Edge: with a count below K, the last experts get no rollout.
    """

    systems: tuple[str, ...] = SYSTEMS
    provides = (EXPERT,)

    def __post_init__(self) -> None:
        if len(set(self.systems)) < 2 or len(set(self.systems)) < len(self.systems):
            raise ValueError(f"systems={self.systems} must be at least two different system prompts")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        k = len(self.systems)
        wanted: list[tuple[Prompt, int, tuple[int, ...]]] = []
        for prompt, n in zip(prompts, counts, strict=True):
            wanted += [
                (with_system(prompt, system), n // k + (i < n % k), ())
                for i, system in enumerate(self.systems)
            ]
        drawn = self.draw(wanted, run)
        groups = []
        for place, prompt in enumerate(prompts):
            rollouts = []
            for expert, answers in enumerate(drawn[place * k : (place + 1) * k]):
                for rollout in answers:
                    EXPERT.set(rollout, expert)
                    rollouts.append(rollout)
            groups.append(Group(prompt, rollouts))
        return groups


@dataclass
class MemlGrpoMutualState(HardPromptsState):
    """The buffer's state, and the number of rollouts taught in the step."""

    taught: int = transient(0)


@register("meml_grpo.mutual")
@dataclass(frozen=True)
class MemlGrpoMutual(HardPrompts):
    """MEML-GRPO's mutual learning: a correct rollout of the best expert of a group is taught to the worst;
    prompts that all fail to a demonstration.

    Best and worst are by the experts' mean rewards. The best's first correct rollout, under the worst's
    prompt (source "taught"), is a group of its own, for loss term nll: -log p(o+ | q, P-), whose gradient is
    that of an estimate of KL(p(. | P+) || p(. | P-)). Failed prompts: `HardPrompts`. Paper: Jia et al. 2025
    (MEML-GRPO), arXiv:2508.09670, from published notes; no code was found. Deviates: the buffer has prompts
    that every rollout failed, and no random choice. Edge: equal means, or no correct rollout of the best,
    teach nothing.
    """

    requires = (EXPERT,)

    def init_state(self) -> MemlGrpoMutualState:
        return MemlGrpoMutualState()

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        taught = [
            Group(rollout.prompt, [rollout], f"{group.id}/taught")
            for group in groups
            if (rollout := lesson(group)) is not None
        ]
        self.state.taught += len(taught)
        return [*super().__call__(groups), *taught]

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        self.state.logged["taught"] = float(self.state.taught)
        self.state.taught = 0


def lesson(group: Group) -> Rollout | None:
    """A correct rollout of the best expert, as one of the worst expert; None where there is nothing to
    teach."""
    by_expert: dict[int, list[Rollout]] = {}
    for rollout in group:
        by_expert.setdefault(EXPERT.get(rollout, 0), []).append(rollout)
    means = {
        expert: sum(r.reward for r in rollouts) / len(rollouts) for expert, rollouts in by_expert.items()
    }
    if len(means) < 2 or min(means.values()) == max(means.values()):
        return None
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    correct = next((rollout for rollout in by_expert[best] if rollout.correct), None)
    if correct is None:
        return None
    return Rollout(
        by_expert[worst][0].prompt,
        list(correct.ids),
        correct.text,
        finish=correct.finish,
        source="taught",
        version=correct.version,
        spaces=correct.spaces,
        temperature=correct.temperature,
        reward=correct.reward,
        rewards=dict(correct.rewards),
        outcome=correct.outcome,
        correct=correct.correct,
    )
