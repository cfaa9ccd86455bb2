"""What a plan is worth to frozen executors: whether they do better with it in an environment, and in how many
steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import PICTURE_REPLIES, Action, Observation
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Engine, Environment, Reward, StepCounts, transient
from vlrl.types import Group, Message, Prompt, Request, Rollout, Row, Sampling
from vlrl_rewards.parsing import strip_thinking

UNHARMED: Annotation[bool] = Annotation(
    "executor_gain.unharmed",
    bool,
    hint="rewards: {gain: {name: executor_gain, ...}}",
    doc="whether both executors did at least as well with the plan as without it",
)
EXECUTORS = ("expert", "novice")
PLAN = "{question}\n\nA plan for the whole task:\n{plan}"


class Played(NamedTuple):
    """What the environment paid for an episode, and its steps."""

    paid: float
    steps: int


@dataclass(eq=False)
class ExecutorEpisode:
    """An episode under way: the row, the conversation so far, and what was paid."""

    row: Row
    episode: Any
    messages: list[Message] = field(default_factory=list)
    paid: float = 0.0
    steps: int = 0
    done: bool = False

    def see(self, observation: Observation) -> None:
        """Take an answer of the environment in."""
        self.paid += observation.reward or 0.0
        self.done = observation.done
        self.messages.append({"role": "user", "content": observation.text})


def plan_of(text: str, tag: str) -> str:
    """The last plan in tags of a response, without its thoughts; "" for none."""
    before, closed, _ = strip_thinking(text).rpartition(f"</{tag}>")
    return before.rpartition(f"<{tag}>")[2].strip() if closed and f"<{tag}>" in before else ""


def gain(with_plan: Played, without: Played, alpha: float) -> float:
    """1[r_p > r_0] (1 + alpha)^(n - m), n steps without the plan and m with it.

    >>> gain(Played(1.0, 3), Played(0.0, 5), 0.5)
    2.25
    """
    return (1.0 + alpha) ** (without.steps - with_plan.steps) if with_plan.paid > without.paid else 0.0


@dataclass
class ExecutorGainState(StepCounts):
    """`engines` of the executors, their `environment`, and what was played: by executor, row and plan."""

    engines: dict[str, Any] = transient(factory=dict)
    environment: Any = transient()
    played: dict[tuple[str, str, str], Played] = transient(factory=dict)


@register("executor_gain")
@dataclass(frozen=True, kw_only=True)
class ExecutorGain(Reward):
    """EAGLET's executor capability gain: R = sum over expert and novice of 1[r_p > r_0] (1 + alpha)^(n - m).

    r_p, m are what a frozen executor is paid in the environment with the plan in the response's last <plan>,
    and its steps; r_0, n without a plan. Writes UNHARMED: r_p >= r_0 for both. Paper: EAGLET,
    arXiv:2510.05608 (read in summaries). Range: [0, 2 (1 + alpha)^(max_turns - 1)]. Edge: a response
    without a plan is paid 0, harms, and is not played. An environment or engine that fails raises: the group
    has no score. Logs the shares of plans that helped each executor, and that harmed.

    Attributes:
        expert, novice: Engines of executors of one family; the expert was trained on such tasks.
        environment: Config of their environment, with text.
    """

    state_class = ExecutorGainState
    needs_gold: ClassVar[bool] = False
    provides = (UNHARMED,)
    expert: Mapping[str, Any] = field(default_factory=dict)
    novice: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 0.1
    tag: str = "plan"
    max_turns: int = 10
    max_tokens: int = 32
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.max_turns < 1 or self.max_tokens < 1 or self.temperature < 0:
            raise ValueError(
                f"alpha={self.alpha} and temperature={self.temperature} must not be negative, "
                f"max_turns={self.max_turns} and max_tokens={self.max_tokens} must be at least 1"
            )

    def check(self, phase: PhaseContext) -> None:
        if not self.environment:
            return
        where = f"rewards: {self.name!r}.environment"
        environment = build(Environment, self.environment, where)
        if PICTURE_REPLIES in environment.provides:
            raise ConfigError(f"{where}: executors read text; set observation: text")
        environment.check(phase)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        where = f"rewards: {self.name!r}"
        for name in (*EXECUTORS, "environment"):
            if not getattr(self, name):
                raise ConfigError(
                    f"{where}: {name} is not set; the frozen executors are engines, like {{name: openai, "
                    "url: http://host:8000/v1, model: name}, and play in an environment, like {name: "
                    "minigrid, id: ...}"
                )
        self.state.environment = build(Environment, self.environment, f"{where}.environment")
        self.state.environment.setup(run)
        for name in EXECUTORS:
            self.state.engines[name] = build(Engine, getattr(self, name), f"{where}.{name}")
            self.state.engines[name].setup(run)

    def prepare(self, groups: Sequence[Group]) -> None:
        bare = {key: one for key, one in self.state.played.items() if not key[2]}
        self.state.played.clear()
        self.state.played.update(bare)
        self.play_all(groups)

    def play_all(self, groups: Sequence[Group]) -> None:
        """Play every row without a plan and with each of its plans, where that was not played yet. Raises
        RuntimeError before `setup`."""
        if not self.state.engines:
            raise RuntimeError(f"reward {self.name!r} asks executors, which are opened by setup(run)")
        rows = {group.row.id: group.row for group in groups}
        wanted = [(group.row.id, self.plan(rollout)) for group in groups for rollout in group]
        pairs = dict.fromkeys([*((row, "") for row in rows), *wanted])
        for name in EXECUTORS:
            new = [pair for pair in pairs if (name, *pair) not in self.state.played]
            found = self.play(self.state.engines[name], [(rows[row], plan) for row, plan in new])
            self.state.played |= {(name, *pair): one for pair, one in zip(new, found, strict=True)}

    def plan(self, rollout: Rollout) -> str:
        """The plan of a response."""
        return plan_of(rollout.text, self.tag)

    def play(self, engine: Any, jobs: Sequence[tuple[Row, str]]) -> list[Played]:
        """One episode per row and plan, all of them turn by turn together."""
        plays = [ExecutorEpisode(row, self.state.environment.episode()) for row, _ in jobs]
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
        try:
            for play, (row, plan) in zip(plays, jobs):
                asked = PLAN.format(question=row.question, plan=plan) if plan else row.question
                opening = play.episode.reset(row, 0)
                play.see(replace(opening, text=f"{asked}\n\n{opening.text}".strip()))
            for turn in range(1, self.max_turns + 1):
                live = [play for play in plays if not play.done]
                requests = [
                    Request(
                        Prompt(replace(one.row, id=f"{one.row.id}/executor"), tuple(one.messages)),
                        sampling,
                        tag=place,
                    )
                    for place, one in enumerate(live)
                ]
                for completion in engine.generate(requests) if requests else ():
                    play = live[completion.request.tag]
                    play.messages.append({"role": "assistant", "content": completion.text})
                    play.steps = turn
                    play.see(play.episode.step(Action(completion.text, turn)))
        finally:
            for play in plays:
                play.episode.close()
        return [Played(play.paid, play.steps) for play in plays]

    def __call__(self, rollout: Rollout) -> float:
        return self.score_group(Group(rollout.prompt, [rollout]))[0]

    def score_group(self, group: Group) -> list[float]:
        self.play_all([group])
        return [self.paid(group.row.id, rollout) for rollout in group]

    def paid(self, row: str, rollout: Rollout) -> float:
        """The gain of one response, whose plan was played; writes UNHARMED."""
        plan, played = self.plan(rollout), self.state.played
        pairs = {name: (played[name, row, plan], played[name, row, ""]) for name in EXECUTORS}
        gains = {name: gain(*pair, self.alpha) if plan else 0.0 for name, pair in pairs.items()}
        unharmed = bool(plan) and all(planned.paid >= bare.paid for planned, bare in pairs.values())
        UNHARMED.set(rollout, unharmed)
        self.state.add(plans=1, harmed=not unharmed, **{name: value > 0 for name, value in gains.items()})
        return math.fsum(gains.values())

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        names = (*EXECUTORS, "harmed")
        return {f"executor_gain/{name}": self.state.share(name, "plans") for name in names}
