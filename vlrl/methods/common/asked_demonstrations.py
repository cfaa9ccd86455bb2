"""Demonstrations that another model writes when they are needed: a base for rollout strategies of synthesis
phases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.beside.judge import check_judge, open_service
from vlrl.beside.service import ModelAsk, Usage
from vlrl.methods.common.demonstrations import expert_rollout
from vlrl.methods.core.rollout import Expert
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.stages import StepCounts, transient
from vlrl.types import Group, Prompt, Rollout


@dataclass
class AskedState(StepCounts):
    """The model that writes, and its config; counts of requests and of usable replies."""

    service: Any = transient()
    config: Any = transient()


@dataclass(frozen=True, kw_only=True)
class AskedDemonstrations(Expert):
    """Base: a `teacher`, {model: name@revision, engine: config}, is asked about each prompt; its usable
    replies are the prompt's demonstrations. A prompt without one gives an empty group, which is replaced."""

    state_class = AskedState
    needs_target: ClassVar[bool] = False
    most: ClassVar[int] = 1  # replies about a prompt
    teacher: Mapping[str, Any] = field(default_factory=dict)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_judge(self.teacher, "rollout.teacher")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.service, self.state.config = open_service(
            self.teacher, run, "rollout.teacher", Usage(), "teacher"
        )

    @abstractmethod
    def asked(self, prompt: Prompt) -> str:
        """What the teacher is asked about a prompt."""

    @abstractmethod
    def usable(self, text: str) -> bool:
        """Whether a reply is a demonstration."""

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        state, config = self.state, self.state.config
        asks = [
            ModelAsk(
                self.asked(prompt),
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=number,
            )
            for prompt, count in zip(prompts, counts, strict=True)
            for number in range(min(count, self.most))
        ]
        replies = iter(state.service.ask(asks))
        groups = []
        for prompt, count in zip(prompts, counts, strict=True):
            own = [next(replies) for _ in range(min(count, self.most))]
            rollouts = []
            for reply in own:
                good = not reply.failure and not reply.cut and self.usable(reply.text)
                state.add(asked=1, usable=good)
                rollouts += [self.demonstration(prompt, reply.text, run)] if good else []
            groups.append(Group(prompt, rollouts))
        return groups

    def demonstration(self, prompt: Prompt, text: str, run: SamplingContext) -> Rollout:
        """The rollout of a reply."""
        rollout = expert_rollout(prompt, text, run)
        rollout.logp = [0.0] * len(rollout)
        return rollout
