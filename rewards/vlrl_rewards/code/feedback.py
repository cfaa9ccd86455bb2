"""The graded reward of programs by what their unit tests end in: passed, wrong, error, no program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import Answer, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.code.sandbox import SandboxLimits, require, run
from vlrl_rewards.code.verifier import MAX_CODE, program_in, same_output, same_result, unit_tests
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import outside_thinking

PAY = {"passed": 1.0, "wrong": -0.3, "error": -0.6, "compile": -1.0}


@register("unit_test_feedback")
@dataclass(frozen=True, kw_only=True)
class UnitTestFeedback(Graded):
    """CodeRL's reward of a program, by the worst that its unit tests end in.

        r = 1 all pass, -0.3 an output is wrong, -0.6 an error or out of time, -1 it does not compile

    Paper: CodeRL, arXiv:2207.01780, eq. 4; used by B-Coder, arXiv:2310.03173. Gold: tests as `code` reads
    them. Edge: no fenced program: -1. Programs run in the sandbox; seconds of wall clock per test. Raises
    ValueError on broken tests.
    """

    refusals: ClassVar[bool] = False
    pay: Mapping[str, float] = field(default_factory=lambda: dict(PAY))
    sandbox: str = "bubblewrap"
    seconds: float = 4.0

    def __post_init__(self) -> None:
        if set(self.pay) != set(PAY):
            raise ConfigError(f"unit_test_feedback.pay: {sorted(self.pay)} are not {sorted(PAY)}")

    def check(self, run: Any) -> None:
        super().check(run)
        require(self.sandbox)

    def lowest(self) -> float:
        return min(self.pay.values())

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        tests = unit_tests(gold)
        text = outside_thinking(response.text)
        program = program_in(text)
        if not program.strip() or len(program) > MAX_CODE:
            raise Unread("no fenced program in the answer")
        start = text.find(program)
        answer = Answer(program, start, start + len(program), "program")
        limits = SandboxLimits(self.seconds, 15 * self.seconds)
        ran = run(program, tests.inputs, tests.fn, limits, self.sandbox, stop=False)
        same = same_output if tests.fn is None else same_result
        ends = [
            ("passed" if same(out.out, wanted) else "wrong") if out.status == "ok" else _fault(out.status)
            for out, wanted in zip(ran, tests.outputs)
        ]
        ends += ["error"] * (len(tests.inputs) - len(ran))
        worst = max(ends, key=list(PAY).index)
        return self.scored(answer, self.pay[worst], worst == "passed", worst)


def _fault(status: str) -> str:
    return "compile" if status.startswith(("SyntaxError", "IndentationError", "TabError")) else "error"
