"""EFAGen's unit tests of an executable functional abstraction: a program that writes variants of a
problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.code.sandbox import require
from vlrl_rewards.code.triplets import executed
from vlrl_rewards.code.verifier import program_in
from vlrl_rewards.combine.nested import note

TESTS = ("extractable", "executable", "has_dof", "single_valued", "matches_original")
NAMES = ("original", "sample", "render", "solve")
SAMPLES = 6
MAX_CHARS = 8000
DRIVER = """

def f(kind, seed):
    given = original() if kind == "original" else sample(seed)
    return [given, str(render(given)), str(solve(given)), str(solve(given))]
"""


def passed_tests(program: str, question: str, answer: str, sandbox: str, seconds: float) -> dict[str, bool]:
    """Which of TESTS a program passes: it defines NAMES; it runs on its original and on SAMPLES seeds; its
    samples differ; `solve` gives one answer twice; its original renders `question` and solves to
    `answer`."""
    passed = dict.fromkeys(TESTS, False)
    passed["extractable"] = all(f"def {name}(" in program for name in NAMES) and len(program) <= MAX_CHARS
    if not passed["extractable"]:
        return passed
    calls: list[list[Any]] = [["original", 0], *(["sample", seed] for seed in range(SAMPLES))]
    ran = executed(program + DRIVER, calls, sandbox, seconds)
    outputs = [json.loads(out) for out in ran if out is not None]
    if len(outputs) < len(calls):
        return passed
    first, *samples = outputs
    passed["executable"] = True
    passed["has_dof"] = len({json.dumps(one[0], sort_keys=True) for one in samples}) > 1
    passed["single_valued"] = all(one[2] == one[3] for one in outputs)
    same = " ".join(first[1].split()) == " ".join(question.split())
    passed["matches_original"] = same and first[2].strip() == answer.strip()
    return passed


def variants(
    program: str, seeds: list[int], sandbox: str = "bubblewrap", seconds: float = 4.0
) -> list[tuple[str, str]]:
    """(question, answer) of an accepted abstraction for each seed; those that fail are left out."""
    outputs = executed(program + DRIVER, [["sample", seed] for seed in seeds], sandbox, seconds)
    found = [json.loads(out) for out in outputs if out is not None]
    return [(one[1], one[2]) for one in found]


@register("abstraction")
@dataclass(frozen=True, kw_only=True)
class Abstraction(Reward):
    """EFAGen's reward: 1 if the answer's fenced program passes all unit tests of an abstraction of the row's
    problem (`row.meta.problem`, answer `row.meta.solution`), else 0; with `partial` the share that it passes.

    The program defines original() -> parameters, sample(seed) -> parameters, render(parameters) ->
    question, solve(parameters) -> answer. Paper: EFAGen, arXiv:2504.09763, sec. 3.2: extractable,
    executable, has degrees of freedom, single-valued, matches the original. Deviates: functions in place of
    a class. Programs run in the sandbox; the parts are logged."""

    needs_gold: ClassVar[bool] = False
    partial: bool = False
    sandbox: str = "bubblewrap"
    seconds: float = 4.0

    def check(self, run: Any) -> None:
        require(self.sandbox)

    def __call__(self, rollout: Rollout) -> float:
        meta: Mapping[str, Any] = rollout.row.meta
        program = program_in(rollout.text)
        passed = passed_tests(
            program, str(meta["problem"]), str(meta["solution"]), self.sandbox, self.seconds
        )
        for name, value in passed.items():
            note(rollout, name, float(value))
        return sum(passed.values()) / len(passed) if self.partial else float(all(passed.values()))
