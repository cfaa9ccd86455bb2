"""VerIF's rules: constraints on a text, each checked by a program that comes with the row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.code.sandbox import SandboxLimits, require, run
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import strip_thinking

FUNCTION = "check_following"
BROKEN = ("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError")


@register("checkers")
@dataclass(frozen=True, kw_only=True)
class Checkers(Graded):
    """VerIF's share of checker programs that a response passes.

        r = mean over programs of 1[check_following(instruction, response) is true]

    The response is the text without its thoughts; the instruction is the row's question. Gold: {functions:
    [program, ...]}, each of which defines `check_following`. Paper: Peng et al. 2025 (VerIF),
    arXiv:2506.09942; released code: THU-KEG/VerIF at 5c86f57,
    verl/utils/reward_score/local_server/{constraint_analyzer.py, code_executer.py}: an exception of a program
    counts as not passed, and without programs r = 1. Deviates: a program that does not load raises ValueError
    (the release counts it as not passed); the release passes the word "instruction" for the question. Edge:
    out of time: not passed. Programs run in the sandbox.
    """

    refusals: ClassVar[bool] = False
    sandbox: str = "bubblewrap"
    seconds: float = 4.0

    def check(self, run: Any) -> None:
        super().check(run)
        require(self.sandbox)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        programs = gold.get("functions") if isinstance(gold, Mapping) else None
        if not isinstance(programs, (list, tuple)) or not all(isinstance(one, str) for one in programs):
            raise GoldError(f"row {row.id!r}: needs an answer {{functions: [program, ...]}}")
        text = strip_thinking(response.text)
        answer = Answer(text, 0, len(response.text), "text")
        passed = [self.passes(program, row.question, text) for program in programs]
        score = sum(passed) / len(passed) if passed else 1.0
        return self.scored(answer, score, None, f"{sum(passed)} of {len(passed)} checks passed")

    def passes(self, program: str, instruction: str, text: str) -> bool:
        """Whether one program says that the text keeps its constraint."""
        limits = SandboxLimits(self.seconds, 2 * self.seconds)
        ran = next(iter(run(program, [[instruction, text]], FUNCTION, limits, self.sandbox)), None)
        if ran is None or (ran.status != "ok" and ran.status.startswith(BROKEN)):
            raise GoldError(f"a checker cannot be loaded: {ran.status if ran else 'it gave no result'}")
        return ran.status == "ok" and bool(json.loads(ran.out))
