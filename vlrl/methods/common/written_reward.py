"""A reward that a model writes: what Text2Reward, ICPL and Auto MC-Reward share.

A callback asks a model for a program over the environment's states, has it checked and run on the episodes of
the batch, and gives every failure back to the model. Reward `written_reward` pays what the program says. A
paper adds its prompts, the functions of its programs, and when a program is written anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from vlrl.beside.judge import check_judge, open_service
from vlrl.beside.service import ModelAsk, Reply, Usage
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.episodes import CONVERSATION, DESCRIBED_STATES, EPISODE_RETURN
from vlrl.plugins.registry import ConfigError, home_of
from vlrl.plugins.stages import Callback, Reward, State, transient
from vlrl.services.lazy import no_grad
from vlrl.types import Group, Rollout

WRITES_REWARD = Capability("writes_reward", hint="callbacks: {writer: {name: text2reward, ...}}")
SHARED = "written_reward"
MAX_TRIED = 16  # episodes on which a new program is tried
ASK = """You write the reward function of a task for reinforcement learning.

What a step of the environment holds:
```python
{state}```
Actions: {actions}.
The task: {goal}

{form}
Only the module math can be imported. Think about what the task needs, then write the program in one \
```python block."""
FAILED = """

You wrote this program:
```python
{program}
```
It cannot be used: {failure}
Write the whole program again, mended, in one ```python block."""


def module() -> Any:
    """The rewards' module that checks and runs written programs."""
    return home_of(Reward, "code.written")


class Draft(NamedTuple):
    """A program that a model wrote, and why it cannot be used ("" if it can)."""

    program: str
    failure: str = ""


@dataclass
class WritingState(State):
    """`program` is the one that pays. `start` are the first trained weights by name, where they are needed.
    `written`, `fed_back` and `unusable` count programs, failures that the writer was shown, and programs that
    were given up."""

    program: str = ""
    start: dict[str, Any] = field(default_factory=dict)
    written: int = 0
    fed_back: int = 0
    unusable: int = 0
    usage: dict[str, int] = field(default_factory=lambda: vars(Usage()).copy())
    service: Any = transient()
    temperature: float = transient(0.0)
    max_tokens: int = transient(0)
    parts: dict[str, list[float]] = transient(factory=dict)  # of the last batch: pay per turn by name
    tried: list[Any] = transient(factory=list)  # episodes of the last batch

    def state_dict(self) -> dict[str, Any]:
        if self.service is not None:
            self.usage = dict(vars(self.service.usage))
        return super().state_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        super().load_state_dict(values)
        if self.service is not None:
            self.service.usage = Usage(**self.usage)


@dataclass(frozen=True, kw_only=True)
class WritesReward(Callback):
    """Base of the callbacks that write a reward: for `rewards: {written: {name: written_reward}}`, over an
    environment whose states are described.

    A program is written when the first batch is scored, checked (`faults`), and run on that batch; what is
    wrong with it goes back to the writer, `repairs` times. One that fails later is mended likewise. Raises
    ConfigError for several ranks, which would write several programs. Logs programs written, failures fed
    back and programs given up, in all.

    Attributes:
        writer: The model: {model: name@revision, engine: config, temperature: 0.7, max_tokens: 1024}.
        goal: The task in words; "": the question of the first training row.
        advice: Words behind the form of the program, such as what rewards of such tasks hold.
        repairs: Failures of one program that the writer is shown.
        sandbox: Where programs run: "bubblewrap", or "unsafe" (limits only).
        seconds: Of wall clock for one episode.
    """

    state_class = WritingState
    FUNCTIONS: ClassVar[Mapping[str, int]] = {}
    DRIVER: ClassVar[str] = ""
    FORM: ClassVar[str] = ""
    writer: Mapping[str, Any] = field(default_factory=dict)
    goal: str = ""
    advice: str = ""
    repairs: int = 3
    sandbox: str = "bubblewrap"
    seconds: float = 2.0
    provides = (WRITES_REWARD,)
    requires = (DESCRIBED_STATES,)

    def __post_init__(self) -> None:
        if self.repairs < 0 or self.seconds <= 0:
            raise ValueError(
                f"repairs={self.repairs} must not be negative, seconds={self.seconds} must be above 0"
            )

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.writer, f"callbacks: {self.name!r}: writer")
        home_of(Reward, "code.sandbox").require(self.sandbox)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.ranks > 1:
            raise ConfigError(
                f"callbacks: {self.name!r} writes one reward program, and {run.ranks} processes would write "
                "one each; train in one process"
            )
        where = f"callbacks: {self.name!r}: writer"
        service, config = open_service(self.writer, run, where, Usage(**self.state.usage), "writer")
        self.state.service = service
        self.state.temperature, self.state.max_tokens = config.temperature, config.max_tokens
        shared: dict[str, Any] = run.shared(SHARED, dict)
        shared["writer"] = self

    # --- writing --------------------------------------------------------------------------------------------

    def question(self) -> str:
        """What the writer is asked: the states, the actions, the task, and the form of a program."""
        environment: Any = self.run.environment
        goal = self.goal or next(row.question for rows in self.run.rows.values() for row in rows)
        return ASK.format(
            state=environment.state_description,
            actions=", ".join(environment.actions),
            goal=goal,
            form="\n".join(filter(None, (self.FORM, self.advice))),
        )

    def ask(self, text: str, seed: int = 0) -> Reply:
        """The model's reply to a text."""
        state = self.state
        asked = ModelAsk(text, temperature=state.temperature, max_tokens=state.max_tokens, seed=seed)
        (reply,) = state.service.ask([asked])
        return reply

    def draft(self, text: str, seed: int = 0, program: str = "", failure: str = "") -> Draft:
        """A program in answer to `text`, after at most `repairs` failures were shown to the writer, with the
        last failure where all of them fail. `program` and `failure`: one that failed already."""
        state = self.state
        for attempt in range(self.repairs + 1 - bool(failure)):
            if failure:
                state.fed_back += 1
            asked = text + FAILED.format(program=program, failure=failure) if failure else text
            reply = self.ask(asked, seed * (self.repairs + 1) + attempt)
            if reply.failure:
                return Draft(program, f"the writer did not answer: {reply.failure}")
            state.written += 1
            program = home_of(Reward, "code.verifier").program_in(reply.text)
            failure = self.failure_of(program)
            if not failure:
                return Draft(program)
        state.unusable += 1
        return Draft(program, failure)

    def failure_of(self, program: str) -> str:
        """Why a program cannot be used, "" if it can: what the critic says of its text, then what happens in
        the sandbox on episodes of the last batch."""
        tried = self.state.tried[:MAX_TRIED]
        keys = sorted(tried[0][0][0]) if tried else ()
        found = module().faults(program, self.FUNCTIONS, keys)
        if found:
            return "; ".join(found)
        return next((one for one in self.ran(program, tried) if isinstance(one, str)), "")

    def ran(self, program: str, trajectories: Sequence[Any]) -> list[Any]:
        """What a program pays for each episode, or why it failed on it (a text)."""
        return list(
            module().evaluate(program, self.DRIVER, trajectories, self.sandbox, self.seconds)
            if trajectories
            else []
        )

    # --- paying ---------------------------------------------------------------------------------------------

    def first(self) -> str:
        """The first program, "" where none could be written that runs."""
        draft = self.draft(self.question(), self.state.unusable)
        return "" if draft.failure else draft.program

    def pays(self, trajectories: Sequence[Any]) -> Sequence[Any]:
        """What the present program pays for each episode; the first batch has it written, a failure has it
        mended. A text where it still fails."""
        state = self.state
        state.tried = list(trajectories)
        if not state.program:
            state.program = self.first()
        if not state.program:
            return ["no program could be written that runs"] * len(trajectories)
        found = self.ran(state.program, trajectories)
        failure = next((one for one in found if isinstance(one, str)), "")
        if failure and self.repairs:
            pairs = list(zip(trajectories, found))  # a mended program meets those that failed first
            state.tried = [one for one, paid in pairs if isinstance(paid, str)]
            state.tried += [one for one, paid in pairs if not isinstance(paid, str)]
            draft = self.draft(self.question(), state.unusable, state.program, failure)
            if not draft.failure:
                state.program, found = draft.program, self.ran(draft.program, trajectories)
        state.parts = means(found)
        return found

    def figures(self) -> dict[str, float]:
        """Numbers for the log."""
        state = self.state
        return {"written": state.written, "fed_back": state.fed_back, "unusable": state.unusable}

    # --- beginning again ------------------------------------------------------------------------------------

    def keep_start(self, run: StageContext) -> None:
        """Keep the trained weights of the phase's beginning. Raises ConfigError where they are sharded."""
        if run.params_sharded:
            raise ConfigError(
                f"callbacks: {self.name!r} trains again from the first weights, and FSDP and ZeRO-3 shard "
                "them; use DDP or ZeRO-2"
            )
        if not self.state.start:
            self.state.start = {
                name: p.detach().clone().cpu()
                for name, p in run.policy.model.named_parameters()
                if p.requires_grad
            }

    @no_grad
    def begin_again(self, run: CallbackContext) -> None:
        """Put the first weights back, and clear the optimizer's moments."""
        trained = dict(run.policy.model.named_parameters())
        for name, weight in self.state.start.items():
            trained[name].copy_(weight.to(trained[name].device))
        run.optimizer.state.clear()
        run.engine.sync(run.policy)


def means(paid: Sequence[Any]) -> dict[str, list[float]]:
    """The mean pay by turn of each named part and of the whole, over the episodes that have that turn."""
    sums: dict[str, dict[int, list[float]]] = {}
    for episode in paid:
        for turn, one in enumerate(() if isinstance(episode, str) else episode):
            for name, value in {"reward": one.value, **one.parts}.items():
                sums.setdefault(name, {}).setdefault(turn, []).append(value)
    return {
        name: [sum(values) / len(values) for _, values in sorted(turns.items())]
        for name, turns in sums.items()
    }


def episodes_in(groups: Sequence[Group]) -> list[Rollout]:
    """One rollout of each episode, its last segment."""
    last: dict[Any, Rollout] = {}
    for number, group in enumerate(groups):
        for place, rollout in enumerate(group):
            last[number, CONVERSATION.get(rollout, -1 - place)] = rollout
    return list(last.values())


def success(groups: Sequence[Group]) -> float:
    """The mean of what the environment itself paid for an episode: the score that the written reward does not
    see."""
    paid = [EPISODE_RETURN.get(rollout) or 0.0 for rollout in episodes_in(groups)]
    return sum(paid) / len(paid) if paid else 0.0


def shown_episode(episode: Sequence[Any]) -> str:
    """An episode as text: a line per turn with the action and what it changed."""
    lines = []
    for turn, (before, action, after) in enumerate(episode, 1):
        changed = {key: after[key] for key in after if after[key] != before.get(key)}
        lines.append(f"{turn}. {action} -> {json.dumps(changed, sort_keys=True) if changed else 'no change'}")
    begin = json.dumps(episode[0][0], sort_keys=True) if episode else "{}"
    return "\n".join([f"begin: {begin}", *lines])
