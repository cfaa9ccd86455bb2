"""Rewards that a model wrote: a program over the environment's states, checked, run in the sandbox, and paid
turn by turn."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.episodes import DESCRIBED_STATES, END_STATE, TURN_REWARDS, TURN_STATES
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward, State, transient
from vlrl.types import Group, Rollout
from vlrl_rewards.code.sandbox import SandboxLimits, run

WRITES_REWARD = Capability("writes_reward", hint="callbacks: {writer: {name: text2reward, ...}}")
SHARED = "written_reward"  # under this name of the run stands who writes, as {"writer": WritesPrograms}
MAX_CHARS = 8000
IMPORTS = ("math",)
BANNED = ("open", "exec", "eval", "compile", "input", "print", "globals", "locals", "vars", "getattr")
Trajectory = list[list[Any]]  # per turn: [state before, name of the action, state after]


class StepPay(NamedTuple):
    """What a program pays for one turn, and its named parts."""

    value: float
    parts: dict[str, float]


Pays = list[StepPay] | str  # per turn of a trajectory, or why the program failed on it


class WritesPrograms(Protocol):
    """Who writes the program and mends it where it fails."""

    def pays(self, trajectories: Sequence[Trajectory]) -> Sequence[Pays]:
        """What the present program pays for each trajectory."""


def trajectory(rollout: Rollout) -> Trajectory:
    """The turns of a rollout's episode that were carried out. Raises ValueError for states that are no JSON
    objects with an "action"."""
    states = [json.loads(state) for state in (*TURN_STATES[rollout], END_STATE[rollout]) if state]
    if not all(isinstance(state, dict) and "action" in state for state in states):
        raise ValueError('a state of the environment is no JSON object with an "action"')
    plain = [{key: value for key, value in state.items() if key != "action"} for state in states]
    actions = [state["action"] for state in states[1:]]
    return [[before, action, after] for before, action, after in zip(plain, actions, plain[1:])]


# --- the critic: what can be said of a program before it runs -----------------------------------------------


def faults(program: str, functions: Mapping[str, int], keys: Sequence[str] = ()) -> list[str]:
    """Why a program may not run: its syntax, functions that are missing or take another number of arguments,
    a function that ignores its states or returns nothing, what it imports and calls, and keys of a state that
    there are not. [] if nothing is wrong.

    Args:
        program: The program.
        functions: Name of each function that it must define, and the number of its arguments.
        keys: Keys of a state; without them they are not checked.
    """
    if not program.strip():
        return ["there is no program in a fenced code block"]
    if len(program) > MAX_CHARS:
        return [f"the program has {len(program)} characters; at most {MAX_CHARS} are allowed"]
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return [f"line {line}: {type(error).__name__}: {getattr(error, 'msg', error)}"]
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = [
        fault for name, count in functions.items() for fault in _of_function(defined.get(name), name, count)
    ]
    return [*found, *_forbidden(tree), *_unknown_keys(defined, functions, keys)]


def _of_function(node: ast.FunctionDef | None, name: str, count: int) -> list[str]:
    if node is None:
        return [f"the function {name} is not defined"]
    given = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    least = len(given) - len(node.args.defaults)
    if not least <= count <= len(given) and not node.args.vararg:
        return [f"{name} takes {len(given)} arguments; it is called with {count}"]
    read = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    found = []
    if not read & set(given):
        found.append(f"{name} reads none of its arguments, so that it pays the same for everything")
    if not any(isinstance(inner, ast.Return) and inner.value is not None for inner in ast.walk(node)):
        found.append(f"{name} returns nothing")
    return found


def _forbidden(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        found += [
            f"line {getattr(node, 'lineno', 0)}: {name} cannot be imported; {', '.join(IMPORTS)} can"
            for name in names
            if name not in IMPORTS
        ]
        if isinstance(node, ast.Name) and node.id in BANNED:
            found.append(f"line {node.lineno}: {node.id} may not be used")
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            found.append(f"line {node.lineno}: {node.attr} may not be used")
    return found


def _unknown_keys(
    defined: Mapping[str, ast.FunctionDef], functions: Mapping[str, int], keys: Sequence[str]
) -> list[str]:
    """Keys that a program reads from a state, the first and the third argument, and that states lack."""
    if not keys:
        return []
    found = []
    for function in (defined[name] for name in functions if name in defined):
        arguments = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        states = set(arguments[0:3:2])
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Name)
                and node.value.id in states
                and isinstance(node.slice, ast.Constant)
                and node.slice.value not in keys
            ):
                found.append(
                    f"line {node.lineno}: a state has no {node.slice.value!r}; it has {', '.join(keys)}"
                )
    return found


# --- the run ------------------------------------------------------------------------------------------------


def evaluate(
    program: str, driver: str, trajectories: Sequence[Trajectory], sandbox: str, seconds: float
) -> list[Pays]:
    """What a program pays for the turns of each trajectory, or why it failed on it: an exception, time, a
    number that is not finite, another type.

    Args:
        program: The program, which was checked by `faults`.
        driver: Python behind it, which defines f(trajectory) -> [[value, {part: value}] per turn].
        trajectories: What f is called with, each in a process of its own.
        sandbox: As in `sandbox.run`.
        seconds: Of wall clock per trajectory.
    """
    limits = SandboxLimits(seconds=seconds, total_seconds=seconds * (len(trajectories) + 1))
    ran = run(f"{program}\n{driver}", [[one] for one in trajectories], "f", limits, sandbox, stop=False)
    found = [_read(one.status, one.out, len(given)) for one, given in zip(ran, trajectories)]
    return [*found, *["timeout"] * (len(trajectories) - len(found))]


def _read(status: str, out: str, turns: int) -> Pays:
    """The pay of each turn from the driver's output; a text is a failure."""
    if status != "ok":
        return status
    try:
        rows = json.loads(out)
    except (ValueError, RecursionError):
        return "the result is no plain value"
    if not isinstance(rows, list) or len(rows) != turns:
        return "the result has not one value per turn"
    pays = []
    for turn, (value, parts) in enumerate(rows, 1):
        numbers = {"the reward": value, **(parts if isinstance(parts, dict) else {"the parts": parts})}
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                return f"turn {turn}: {name} is {number!r:.40}, a {type(number).__name__} and no number"
            if not math.isfinite(number):
                return f"turn {turn}: {name} is {number}, which is not finite"
        pays.append(StepPay(float(value), {name: float(number) for name, number in parts.items()}))
    return pays


# --- the reward ---------------------------------------------------------------------------------------------


@dataclass
class WrittenRewardState(State):
    """What the program pays for the trajectories of the current batch, by their text."""

    paid: dict[str, Pays] = transient(factory=dict)


@register("written_reward")
@dataclass(frozen=True, kw_only=True)
class WrittenReward(Reward):
    """The return under a reward program that a model wrote: R = sum over turns of program(s_t, a_t, s_{t+1}).

    A callback of the run writes the program and mends it (`text2reward`, `icpl`, `auto_mc_reward`). The pay
    of each turn stands in TURN_REWARDS in place of the environment's, so that an advantage per turn sees it.
    Edge: where the program still fails after it was mended, the rollout has no score (`NoScore`); a failure
    is never one. An episode without a turn that was carried out is paid 0. Range: the program's. Papers:
    Text2Reward, arXiv:2309.11489; ICPL, arXiv:2410.17233; Auto MC-Reward, arXiv:2312.09238. Raises
    RuntimeError before `setup`.
    """

    state_class = WrittenRewardState
    reads_answer: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    requires = (WRITES_REWARD, DESCRIBED_STATES, TURN_STATES, END_STATE, TURN_REWARDS)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        run.shared(SHARED, dict)

    def prepare(self, groups: Sequence[Group]) -> None:
        self.state.paid = {}
        self.pays([rollout for group in groups for rollout in group])

    def pays(self, rollouts: Sequence[Rollout]) -> list[Pays]:
        """What the program pays for the turns of each rollout's episode; equal episodes are run once."""
        if not self.is_set_up:
            raise RuntimeError(
                f"reward {self.name!r} was called before setup(run), and no program is written"
            )
        given = [trajectory(rollout) for rollout in rollouts]
        names = [json.dumps(one, sort_keys=True) for one in given]
        new = {name: one for name, one in zip(names, given) if one and name not in self.state.paid}
        if new:
            shared: dict[str, WritesPrograms] = self.run.shared(SHARED, dict)
            writer = shared["writer"]
            self.state.paid.update(zip(new, writer.pays(list(new.values())), strict=True))
        return [self.state.paid[name] if one else [] for name, one in zip(names, given)]

    def __call__(self, rollout: Rollout) -> float:
        (score,) = self.score_group(Group(rollout.prompt, [rollout]))
        if isinstance(score, NoScore):
            raise score
        return score

    def score_group(self, group: Group) -> list[float | NoScore]:
        found: list[float | NoScore] = []
        for rollout, paid in zip(group, self.pays(group.rollouts)):
            if isinstance(paid, str):
                found.append(NoScore(f"reward {self.name!r}: the written program failed ({paid[:200]})"))
                continue
            turns = [self.weight * one.value for one in paid]
            TURN_REWARDS.set(rollout, turns + [0.0] * (len(TURN_REWARDS[rollout]) - len(turns)))
            found.append(math.fsum(one.value for one in paid))
        return found
