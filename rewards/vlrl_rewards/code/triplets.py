"""Absolute Zero's rewards: executed triplets of a program, its input and its output, for proposers and
solvers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.code.sandbox import SandboxLimits, require, run
from vlrl_rewards.code.verifier import program_in
from vlrl_rewards.parsing import last_answer

SOLVED: Annotation[float] = Annotation(
    "absolute_zero.solved",
    float,
    hint="rollout: {name: absolute_zero}",
    doc="share of right solutions of the proposed task; -1 for a proposal that is not valid",
)
INPUT = re.compile(r"```input\s*\n(.*?)```", re.DOTALL)
BANNED = ("random", "import os", "import sys", "time", "open(", "input(", "print(", "__")
MAX_CHARS = 4000


class Triplet(NamedTuple):
    """A program with a function `f`, the arguments of a call (a list) and what it returns, as JSON."""

    program: str
    arguments: list[Any]
    output: str


def literal(text: str) -> Any:
    """The Python value that a text writes. Raises ValueError for anything else."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ValueError("not a value") from None


def arguments_in(text: str) -> list[Any]:
    """The arguments that a text lists: "1, 'a'" gives [1, "a"]. Raises ValueError."""
    value = literal(f"({text.strip().rstrip(',')},)")
    json.dumps(value := list(value))
    return value


def executed(program: str, calls: list[list[Any]], sandbox: str, seconds: float) -> list[str | None]:
    """What `f` returns for each call, as JSON; None for an error or a time-out. Raises SandboxError."""
    limits = SandboxLimits(seconds=seconds, total_seconds=seconds * (len(calls) + 1))
    ran = run(program, calls, "f", limits, sandbox, stop=False)
    return [one.out if one.status == "ok" else None for one in ran] + [None] * (len(calls) - len(ran))


def proposed(text: str, sandbox: str = "bubblewrap", seconds: float = 2.0) -> Triplet | None:
    """The triplet that a proposal writes: a fenced program that defines `f`, and an ```input block. None
    where it cannot be read, uses a banned word, fails, or returns another value the second time."""
    program, given = program_in(text), INPUT.findall(text)
    if not given or "def f(" not in program or len(program) > MAX_CHARS:
        return None
    if any(word in program for word in BANNED):
        return None
    try:
        arguments = arguments_in(given[-1])
    except (ValueError, TypeError):
        return None
    first, second = (executed(program, [arguments], sandbox, seconds)[0] for _ in range(2))
    return Triplet(program, arguments, first) if first is not None and first == second else None


@register("triplet")
@dataclass(frozen=True, kw_only=True)
class TripletReward(Reward):
    """Absolute Zero's rewards, by `row.meta.role`:

        propose    1 - s for 0 < s, 0 for s = 0, s the solver's share of right answers; `wrong` if not valid
        deduction  the output that program and input give: 1 if the value is equal
        abduction  an input that gives the output: 1 if the program returns it (any input will do)
        induction  a program for the cases: 1 if it is right on all of `meta.cases`

    A wrong answer that is well formed is paid `wrong`, one without an answer `unformed`. Paper: Zhao et al.
    2025 (Absolute Zero), arXiv:2505.03335, eq. 4-6; release: LeapLabTHU/Absolute-Zero-Reasoner at a82124e5,
    rewards/reward_managers.py:435-437, 819-820 (-0.5, -1, one_minus). Programs run in the sandbox. Raises
    KeyError for a proposal without the rollout strategy `absolute_zero`, which measures s.
    """

    needs_gold: ClassVar[bool] = False
    wrong: float = -0.5
    unformed: float = -1.0
    sandbox: str = "bubblewrap"
    seconds: float = 2.0

    def check(self, run: Any) -> None:
        require(self.sandbox)

    def __call__(self, rollout: Rollout) -> float:
        meta = rollout.row.meta
        if meta["role"] == "propose":
            solved = SOLVED[rollout]
            if solved < 0:
                return self.wrong if INPUT.search(rollout.text) else self.unformed
            return 1.0 - solved if solved > 0 else 0.0
        answer = program_in(rollout.text) if meta["role"] == "induction" else last_answer(rollout.text)
        if not answer.strip():
            return self.unformed
        return 1.0 if self.right(answer, meta) else self.wrong

    def right(self, answer: str, meta: Mapping[str, Any]) -> bool:
        """Whether a solver's answer is right, by execution."""
        if meta["role"] == "induction":
            calls, wanted = [list(case[0]) for case in meta["cases"]], [case[1] for case in meta["cases"]]
            return executed(answer[:MAX_CHARS], calls, self.sandbox, self.seconds) == wanted
        try:
            if meta["role"] == "deduction":
                return bool(literal(answer) == json.loads(meta["output"]))
            arguments = arguments_in(answer)
        except (ValueError, TypeError):
            return False
        return executed(meta["program"], [arguments], self.sandbox, self.seconds) == [meta["output"]]
