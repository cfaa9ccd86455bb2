"""AgentRL: turns of one conversation are sampled from several policies, and advantages are normalised within
each task.

    agentrl                   rollout strategy: cross-policy sampling
    agentrl.task_advantage    advantage: group-relative, then normalised over the tokens of each task

Paper: Zhang et al. 2025 (AgentRL), arXiv:2510.04206, sec. 3.3 (cross-policy sampling, task advantage
normalisation). The code (THUDM/AgentRL) could not be had.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.contexts import SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Engine, StepCounts, transient
from vlrl.types import Completion, Group, Prompt, Request, Rollout, Sampling


class OtherPolicy:
    """A run as the second engine sees it: the same in everything but its policy."""

    def __init__(self, run: StageContext, policy: Any) -> None:
        self.run, self.policy = run, policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


@dataclass
class AgentrlState(StepCounts):
    """The stale policy's engine and model (None: not yet made), the steps since it was renewed, and the turns
    of the step by policy."""

    engine: Any = transient()
    policy: Any = transient()
    age: int = transient(0)


@register("agentrl")
@dataclass(frozen=True)
class Agentrl(MultiTurn):
    """AgentRL's cross-policy sampling: each turn of a conversation is drawn from the current policy or, with
    probability `share`, from a stale one.

    Conversations reach states that neither policy reaches alone. The log-probs of a turn are those of the
    policy that sampled it. Paper: arXiv:2510.04206, sec. 3.3, eq. 4 (a ~ pi_i with i uniform over a set of
    policies; in training a group of engines that is synchronised less often). Ours: `share` for the uniform
    choice, and one stale policy. Edge: at first it is the policy that the phase began with; a restart renews
    it. Memory: one copy of the weights. Raises ConfigError for sharded weights. Logs the share of stale
    turns.

    Attributes:
        every: Steps after which the stale policy, a copy of the weights, is renewed.
        stale: The engine of the stale policy.
    """

    state_class = AgentrlState
    share: float = 0.5
    every: int = 4
    stale: Mapping[str, Any] = field(default_factory=lambda: {"name": "hf"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1 or self.every < 1:
            raise ValueError(f"share={self.share} must be in [0, 1] and every={self.every} at least 1")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.params_sharded:
            raise ConfigError(
                f"rollout: {self.name!r} keeps a copy of whole weights, and FSDP and ZeRO-3 shard them; "
                "use DDP or ZeRO-2"
            )
        self.state.policy = run.policy.with_model(copy.deepcopy(run.policy.model))
        self.state.engine = build(Engine, dict(self.stale), "rollout.stale")
        self.state.engine.setup(OtherPolicy(run, self.state.policy))

    def end_step(self, run: StepContext) -> None:
        state: AgentrlState = self.state
        super().end_step(run)
        state.age += 1
        if state.age >= self.every and state.policy is not None:
            state.policy.model.load_state_dict(run.policy.model.state_dict())
            state.engine.sync(state.policy)
            state.age = 0

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        share = self.state.share("stale", "turns")
        return {"agentrl/stale_turns": share} if share[1] else {}

    def play(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling], run: SamplingContext
    ) -> list[list[Rollout] | str] | None:
        """Held-out evaluation, of the current policy alone."""
        return MultiTurn(**{f.name: getattr(self, f.name) for f in fields(MultiTurn)}).play(
            prompts, samplings, run
        )

    def turns(self, requests: Sequence[Request], run: StageContext) -> Iterable[Completion]:
        state: AgentrlState = self.state
        chosen = [random.Random(f"{request.seed}/agentrl").random() < self.share for request in requests]
        state.add(stale=sum(chosen), turns=len(requests))
        for engine, which in ((run.engine, False), (state.engine, True)):
            own = [request for request, stale in zip(requests, chosen, strict=True) if stale is which]
            if own:
                yield from engine.generate(own)


@register("agentrl.task_advantage")
@dataclass(frozen=True)
class AgentrlTaskAdvantage(GRPO):
    """AgentRL's task advantage normalisation: A <- (A - mean_task A) / (std_task A + eps), mean and std over
    the trained tokens of the task.

    A is the group-relative advantage (with the fields of `grpo`), spread over the trained tokens of its
    rollout, so that a long rollout counts as often as it has tokens. Every task of the batch then has mean 0
    and variance 1 over its tokens, however hard it is, however long its rollouts. Paper: arXiv:2510.04206,
    sec. 3.3, eq. 5. Edge: a task whose tokens all have the same advantage gets 0. Units: none.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        values = super().__call__(groups)
        for task in dict.fromkeys(group.row.task for group in groups):
            own = [place for place, group in enumerate(groups) if group.row.task == task]
            pairs = [
                (value, rollout)
                for place in own
                for value, rollout in zip(values[place], groups[place].rollouts, strict=True)
            ]
            mean, std = token_moments(pairs)
            for place in own:
                values[place] = [
                    (value - mean) / (std + self.eps) if std > 0 else 0.0 for value in values[place]
                ]
        return values


def token_moments(pairs: Sequence[tuple[float, Rollout]]) -> tuple[float, float]:
    """Mean and standard deviation of the values over the trained tokens of their rollouts; (0, 0) without
    tokens or where all values are equal."""
    count = sum(rollout.trained_tokens for _, rollout in pairs)
    if not count or len({value for value, rollout in pairs if rollout.trained_tokens}) < 2:
        return 0.0, 0.0
    mean = math.fsum(value * rollout.trained_tokens for value, rollout in pairs) / count
    return mean, math.sqrt(
        math.fsum((value - mean) ** 2 * rollout.trained_tokens for value, rollout in pairs) / count
    )
