"""SAGA's measures of a set of test cases: which wrong programs it catches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.code.sandbox import require
from vlrl_rewards.code.triplets import arguments_in, executed
from vlrl_rewards.combine.nested import note
from vlrl_rewards.parsing import last_answer


def cases_in(text: str, most: int) -> list[list[Any]]:
    """The calls that a text lists, one per line: "1, [2]" gives [1, [2]]. Lines that cannot be read are
    left out; equal ones count once."""
    found: list[list[Any]] = []
    for line in text.splitlines():
        try:
            arguments = arguments_in(line)
        except (ValueError, TypeError):
            continue
        if line.strip() and arguments not in found:
            found.append(arguments)
    return found[:most]


def caught(
    cases: list[list[Any]], right: str, wrong: Sequence[str], sandbox: str, seconds: float
) -> tuple[list[bool], int]:
    """Whether each wrong program gives another result than the right one on some case, and the number of
    cases that the right one accepts; on the others nothing is compared."""
    truth = executed(right, cases, sandbox, seconds) if cases else []
    valid = [case for case, out in zip(cases, truth) if out is not None]
    wanted = [out for out in truth if out is not None]
    if not valid:
        return [False] * len(wrong), 0
    return [executed(program, valid, sandbox, seconds) != wanted for program in wrong], len(valid)


def suite_scores(detected: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Of a suite over problems: the detection rate (share of wrong programs that are caught) and the verifier
    accuracy (share of problems of which all wrong programs are)."""
    flat = [one for problem in detected for one in problem]
    return {
        "detection_rate": sum(flat) / len(flat) if flat else 0.0,
        "verifier_accuracy": sum(all(problem) for problem in detected) / len(detected) if detected else 0.0,
    }


@register("case_detection")
@dataclass(frozen=True, kw_only=True)
class CaseDetection(Reward):
    """SAGA's reward of test cases: the detection rate, the share of `row.meta.wrong` (programs) that a case
    of the answer tells from `row.meta.right`.

    The answer lists calls of `f`, one per line; at most `most` are run. Correct where every wrong program is
    caught (the verifier accuracy). Paper: Rethinking Verification for LLM Code Generation (SAGA),
    arXiv:2507.06920, sec. 2 (DR, VAcc). Edge: cases on which the right program fails count nothing. Programs
    run in the sandbox.
    """

    needs_gold: ClassVar[bool] = False
    most: int = 8
    sandbox: str = "bubblewrap"
    seconds: float = 2.0

    def check(self, run: Any) -> None:
        require(self.sandbox)

    def __call__(self, rollout: Rollout) -> float:
        meta: Mapping[str, Any] = rollout.row.meta
        cases = cases_in(last_answer(rollout.text), self.most)
        found, valid = caught(cases, meta["right"], meta["wrong"], self.sandbox, self.seconds)
        note(rollout, "valid_cases", float(valid))
        return suite_scores([found])["detection_rate"]
