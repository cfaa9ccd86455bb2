"""ProcessBench: finds a model the first wrong step of a solution? Records as released, scored by its own
rule.

    id "gsm8k-0", problem, steps [..], label: the first wrong step, from 0; -1 where all are right

A prediction is right where it is the label. The score of a subset (the id's first part) is the harmonic mean
of the accuracies on wrong and on right solutions, that of the benchmark the mean over subsets. Source:
QwenLM/ProcessBench code/run_eval_prm_trl.py at 04d347e7 (argmax per step, 2 a b / (a + b)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.beside.benchmarks import mean
from vlrl.beside.judge import Judge, Question
from vlrl.beside.templates import load_template
from vlrl.plugins.registry import ConfigError

NONE_WRONG = -1
TEMPLATE = "first_steps"


@dataclass(frozen=True)
class Solution:
    """A problem, the steps of a solution, the first wrong one (-1: none), and its subset."""

    question: str
    steps: tuple[str, ...]
    label: int
    group: str = ""


def is_solution(row: Mapping[str, Any]) -> bool:
    """Whether a record has the columns of ProcessBench."""
    return {"problem", "steps", "label"} <= set(row)


def solutions(rows: Sequence[Mapping[str, Any]]) -> list[Solution]:
    """The solutions of records. Raises ConfigError for a record of another kind, or a label that is no
    step."""
    found = []
    for number, row in enumerate(rows):
        if not is_solution(row):
            raise ConfigError(
                f"judge check: record {number} has {sorted(row)}, and others have the columns of "
                "ProcessBench; give each benchmark a file of its own"
            )
        steps, label = tuple(map(str, row["steps"])), int(row["label"])
        if not steps or not NONE_WRONG <= label < len(steps):
            raise ConfigError(
                f"judge check: record {number}: label {label} is no step of {len(steps)}; it is the first "
                "wrong step, from 0, or -1"
            )
        group = str(row.get("id", "")).rpartition("-")[0]
        found.append(Solution(str(row["problem"]), steps, label, group))
    return found


def first_wrong(values: Sequence[float | None]) -> int | None:
    """The first step whose probability of being right is below 1/2, -1 without one; None where a step before
    it has no verdict.

    >>> first_wrong([0.9, 0.4, 0.1]), first_wrong([0.9, 0.5]), first_wrong([None, 0.1])
    (1, -1, None)
    """
    for place, value in enumerate(values):
        if value is None:
            return None
        if value < 0.5:
            return place
    return NONE_WRONG


def judged(judge: Judge, found: Sequence[Solution]) -> list[int | None]:
    """The first wrong step of each solution by a judge, which is asked about its first step, its first two,
    and so on (template `first_steps`, whatever its own is)."""
    asked = replace(judge, template=load_template(TEMPLATE))
    questions = [
        Question((("question", one.question), ("answer", "\n\n".join(one.steps[: count + 1]))))
        for one in found
        for count in range(len(one.steps))
    ]
    values = iter([judgement.value for judgement in asked.ask(questions)])
    return [first_wrong([next(values) for _ in one.steps]) for one in found]


def scores(found: Sequence[Solution], predictions: Sequence[int | None]) -> dict[str, Any]:
    """`accuracy` over all; by subset and as their mean (`macro`) the harmonic mean of the accuracies on wrong
    and right solutions, which `wrong` and `right` have. A prediction without a verdict is not right, and
    counted in `null`. A subset that has one kind alone has no harmonic mean."""
    right: dict[str, dict[bool, list[bool]]] = {}
    for one, prediction in zip(found, predictions, strict=True):
        kinds = right.setdefault(one.group, {True: [], False: []})
        kinds[one.label != NONE_WRONG].append(prediction == one.label)
    by_group = {
        group: harmonic(kinds[True], kinds[False]) for group, kinds in right.items() if all(kinds.values())
    }
    return {
        "accuracy": mean([hit for kinds in right.values() for hits in kinds.values() for hit in hits]),
        "wrong": mean([hit for kinds in right.values() for hit in kinds[True]]),
        "right": mean([hit for kinds in right.values() for hit in kinds[False]]),
        **({"macro": mean(list(by_group.values())), "by_group": by_group} if by_group else {}),
        "null": mean([prediction is None for prediction in predictions]),
        "flip": 0.0,
        "rows": len(found),
    }


def harmonic(wrong: Sequence[bool], right: Sequence[bool]) -> float:
    """2 a b / (a + b) of two accuracies; 0 where both are 0.

    >>> harmonic([True, False], [True])
    0.6666666666666666
    """
    a, b = mean(wrong), mean(right)
    return 2 * a * b / (a + b) if a + b else 0.0
