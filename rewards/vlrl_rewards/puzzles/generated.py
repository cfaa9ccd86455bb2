"""Rewards for generated puzzles: Boolean satisfiability, chains of problems."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import boxes_in, visible

_INTEGER = re.compile(r"-?\d{1,12}")
_LIST = re.compile(r"[\s\d,;\-\[\]()>]{1,4000}")
_BITS = re.compile(r"[\s01,;\[\]()]{1,2000}")


def read_integers(text: str) -> list[int] | None:
    """The integers of "1, 2 3", "[1,2,3]" or "1 -> 2 -> 3"; None if the text has anything else."""
    plain = text.replace("->", " ").strip()
    return [int(number) for number in _INTEGER.findall(plain)] if _LIST.fullmatch(plain) else None


def clauses_of(text: str) -> list[list[int]]:
    """SATURN's text of clauses as lists of signed variable numbers: "A!B & BC" is [[1, -2], [2, 3]]; [] for
    any other text."""
    clauses = [clause.strip() for clause in text.split("&")]
    if not all(re.fullmatch(r"(?:!?[A-Z])+", clause) for clause in clauses):
        return []
    return [
        [
            (ord(letter) - ord("A") + 1) * (-1 if mark else 1)
            for mark, letter in re.findall(r"(!?)([A-Z])", clause)
        ]
        for clause in clauses
    ]


@register("sat")
@dataclass(frozen=True, kw_only=True)
class Sat(Graded):
    """Boolean satisfiability.

        r = 1[every clause has a true literal]

    No answer in tags or a box: `absent`; another number of bits there: 0.
    Paper: SATURN, arXiv:2505.16368 (released code: 1 correct, 0 wrong, -1 without a boxed answer).
    Deviates: `absent` is 0 by default; missing bits are not read as 0. Gold: clauses as lists of signed
    variable numbers from 1, [[1, -2], [2, 3]], or as the release's text, "A!B & BC"; bit i of the answer is
    variable i ("0110", "0 1 1 0").
    Range {absent, 0, 1}.
    """

    absent: float = 0.0

    def lowest(self) -> float:
        return min(0.0, self.absent)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        gold = clauses_of(gold) if isinstance(gold, str) else gold
        listed = isinstance(gold, (list, tuple)) and all(isinstance(clause, (list, tuple)) for clause in gold)
        whole = listed and all(
            isinstance(v, int) and not isinstance(v, bool) for clause in gold for v in clause
        )
        clauses = [list(clause) for clause in gold] if whole else []
        if not clauses or not all(clause and all(clause) for clause in clauses):
            raise GoldError(f"answer: {gold!r} is not a list of clauses such as [[1, -2], [2, 3]]")
        most = max(abs(v) for clause in clauses for v in clause)
        if int(row.meta.get("variables", most)) < most:
            raise GoldError(
                f"variables: row.meta has {row.meta['variables']}, but a clause names variable {most}"
            )
        target = clauses
        answer = self.committed(response)
        count = int(row.meta.get("variables", max(abs(v) for clause in target for v in clause)))
        bits = re.sub(r"\D", "", answer.text) if _BITS.fullmatch(answer.text) else ""
        if len(bits) != count:
            reason = f"{len(bits)} bits instead of {count}"
            if answer.tagged:
                return self.scored(answer, 0.0, False, reason)
            raise Unread(reason, answer)
        true = sum(any((bits[abs(v) - 1] == "1") == (v > 0) for v in clause) for clause in target)
        return self.scored(
            answer,
            float(true == len(target)),
            true == len(target),
            f"{true} of {len(target)} clauses true",
            bits,
        )


@register("chain")
@dataclass(frozen=True, kw_only=True)
class Chain(Graded):
    """A chain of problems with one answer each.

        all:    1[every answer correct]
        last:   1[the last one correct]
        share:  correct answers / answers

    Paper: R-Horizon, arXiv:2510.08189 (all correct, and the last one). Gold: [3, 5, -2]. With `answer_in`
    "box" an answer is a LaTeX box each: the last ones outside the thoughts, as in the release
    (deepscaler_math_multi_verify/utils/utils.py:445-491). Edge: a different number of answers (fewer boxes):
    0 (mode "last": only an empty list). Range [0, 1].
    """

    mode: Literal["all", "last", "share"] = "all"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        listed = isinstance(gold, (list, tuple)) and all(isinstance(n, (int, str)) for n in gold)
        numbers = [int(n) for n in gold] if listed else read_integers(str(gold)) or []
        if not numbers:
            raise GoldError(f"answer: {gold!r} is not a list of numbers such as [3, 5, -2]")
        target = numbers
        answer, said = self.boxed(response, len(target)) if self.answer_in == "box" else self.listed(response)
        if not said or (self.mode != "last" and len(said) != len(target)):
            raise Unread(f"not {len(target)} numbers", answer)
        hits = sum(a == b for a, b in zip(said, target))
        table = {
            "all": float(said == target),
            "last": float(said[-1] == target[-1]),
            "share": hits / len(target),
        }
        return self.scored(
            answer,
            table[self.mode],
            said == target,
            f"{hits} of {len(target)} right",
            " ".join(map(str, said)),
        )

    def listed(self, response: Response) -> tuple[Answer, list[int] | None]:
        """The answer that lists all numbers."""
        answer = self.committed(response)
        return answer, read_integers(answer.text)

    def boxed(self, response: Response, count: int) -> tuple[Answer, list[int] | None]:
        """The numbers of the last `count` boxes; None where there are fewer, or one holds no whole number."""
        text = visible(response.text)
        found = boxes_in(text)[-count:]
        if not found:
            raise Unread("no box", response.whole)
        inside = [text[start:end] for _, _, start, end in found]
        numbers = [read_integers(one) for one in inside]
        answer = Answer(" ".join(inside), found[0][0], found[-1][1], "boxes")
        return answer, [n[0] for n in numbers if n and len(n) == 1]
