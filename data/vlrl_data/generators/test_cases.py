"""Problems with a right program and wrong ones that only some inputs tell apart: for writers of test
cases."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

# task, right program, wrong programs, cases that catch them all
PROBLEMS = (
    (
        "f(x) returns the absolute value of the integer x plus {k}.",
        "def f(x):\n    return abs(x) + {k}",
        ("def f(x):\n    return x + {k}", "def f(x):\n    return abs(x) + {k} if x else 0"),
        "-3\n0",
    ),
    (
        "f(values) returns the largest of the integers in a list, {k} for an empty one.",
        "def f(values):\n    return max(values, default={k})",
        ("def f(values):\n    return values[-1] if values else {k}", "def f(values):\n    return "
                                                                     "max([0, *values])"),
        "[3, 1]\n[-2]\n[]",
    ),
    (
        "f(n) says whether the integer n is divisible by {k} and above {k}.",
        "def f(n):\n    return n % {k} == 0 and n > {k}",
        ("def f(n):\n    return n % {k} == 0", "def f(n):\n    return n > {k}", "def f(n):\n    "
                                                                                "return n >= {k} "
                                                                                "and n % {k} == 0"),
        "0\n{k}\n101",
    ),
)  # fmt: skip


@register("gen_test_cases")
@dataclass(frozen=True, kw_only=True)
class GenTestCases(GeneratedSource):
    """Write test cases for a function, one call a line: `meta.right` is a program that does what is asked,
    `meta.wrong` programs with typical faults.

    Paper: SAGA, arXiv:2507.06920 (there submissions of people to contests). Reward: `case_detection`.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            place, k = rng.randrange(len(PROBLEMS)), rng.randint(2, 60)
            if (random.Random(f"test cases split {place} {k}").random() < 0.2) == (self.split == "heldout"):
                break
        task, right, wrong, cases = PROBLEMS[place]
        question = (
            f"{task.format(k=k)} Write arguments of calls that tell right programs from wrong "
            f"ones, one call per line."
        )
        meta = {"right": right.format(k=k), "wrong": [program.format(k=k) for program in wrong]}
        target = tagged_answer(cases.format(k=k))
        return Row(self.id(index), question, cases.format(k=k), task="test_cases", target=target, meta=meta)
