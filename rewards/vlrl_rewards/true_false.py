"""A list of verdicts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged


@judged("true_false")
@register("true_false")
@dataclass(frozen=True, kw_only=True)
class TrueFalse(Graded):
    """exact: 1[all verdicts right];  share: share of right verdicts, for a list of yes / no verdicts such as "T F F".

    Paper: MiCo, arXiv:2506.22434 (same or different for each pair of pictures; exact match). Edge: another number of verdicts, or any other word: 0.
    Range [0, 1]. Words: T / true / yes / same, F / false / no / different.
    """

    mode: Literal["exact", "share"] = "exact"

    def read(self, text: str) -> list[bool] | None:
        """The verdicts, or None if there is any other word."""
        words = re.findall(r"[A-Za-z]{1,12}", text[:2000].casefold())
        if len(words) == 1 and len(words[0]) > 1 and set(words[0]) <= {"t", "f"}:
            words = list(words[0])
        meaning = {**dict.fromkeys(("t", "true", "yes", "same"), True), **dict.fromkeys(("f", "false", "no", "different"), False)}
        return [meaning[w] for w in words] if words and all(w in meaning for w in words) else None

    def target(self, gold: Any, scene: Scene) -> list[bool]:
        verdicts = self.read(" ".join(map(str, gold)) if isinstance(gold, (list, tuple)) else str(gold))
        if not verdicts:
            raise ValueError(f"answer: {gold!r} is not a list of verdicts such as 'T F F'")
        return verdicts

    def grade(self, target: list[bool], answer: Answer, scene: Scene) -> Grade:
        said = self.read(answer.text)
        if said is None or len(said) != len(target):
            return self.refuse("not a list of that many verdicts")
        right = sum(a == b for a, b in zip(said, target, strict=True))
        exact = right == len(target)
        return Grade(float(exact) if self.mode == "exact" else right / len(target), exact, f"{right} of {len(target)}")
