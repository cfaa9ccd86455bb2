"""Interleaved reasoning: think, answer a part, think, answer the whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.format.tags import has_content
from vlrl_rewards.verification import load, verify

_MARK = re.compile(r"<(/?)(think|answer)>", re.IGNORECASE)
_ORDER = ("<think>", "</think>", "<answer>", "</answer>")


def turns(text: str) -> list[str] | None:
    """The answers of a text of one or more `<think>...</think><answer>...</answer>` and nothing else; None
    for any other text."""
    text = text.strip()
    marks = list(_MARK.finditer(text))
    if not marks or len(marks) % 4 or any(mark[0].lower() != _ORDER[i % 4] for i, mark in enumerate(marks)):
        return None
    outside = [
        text[: marks[0].start()],
        *(text[a.end() : b.start()] for a, b in zip(marks[1::2], marks[2::2], strict=False)),
        text[marks[-1].end() :],
    ]
    inside = [text[a.end() : b.start()].strip() for a, b in zip(marks[::2], marks[1::2], strict=True)]
    return inside[1::2] if all(inside) and not any(part.strip() for part in outside) else None


@register("interleaved")
@dataclass(frozen=True, kw_only=True)
class Interleaved(Reward):
    """Interleaved reasoning: format and final accuracy.

        r = -form                                  text of another format than <think>, <answer>, in turns
            form + 2 answer                        the last answer is right
            form - 1.5 answer                      it is wrong
            form - 2 answer                        it has neither a letter nor a digit, so that it cannot be
            read

    Paper: Interleaved Reasoning, arXiv:2505.19640, eq. C.1 and C.2, which name the weights lambda_f (`form`)
    and lambda_a (`answer`) without their values. Credit for the answers on the way is the reward
    `interleaved_steps`. `verifier`: the kind of the answers.
    Range [-form, form + 2 answer]; correct is a right last answer in the right format.
    """

    form: float = 1.0
    answer: float = 1.0
    verifier: str = "auto"

    def __post_init__(self) -> None:
        load(self.verifier)
        if self.form <= 0 or self.answer <= 0:
            raise ValueError(f"form={self.form} and answer={self.answer} must be above 0")

    def __call__(self, rollout: Rollout) -> float:
        said = turns(rollout.text)
        if said is None:
            return -self.form
        right = judged(rollout.answer, said[-1], self.verifier)
        return self.form + self.answer * (2.0 if right else -1.5 if has_content(said[-1]) else -2.0)

    def correct(self, rollout: Rollout, score: float) -> bool:
        """A right last answer in the right format, whatever the weights."""
        return score > self.form


@register("interleaved_steps")
@dataclass(frozen=True, kw_only=True)
class InterleavedSteps(Reward):
    """Interleaved reasoning: credit for right answers on the way to a right last one.

        r = base c where the format is right and the last answer is right, else 0
        c = all:    1[the k-th answer is the k-th gold step, for all k]
            share:  1/n sum_k 1[the k-th answer is the k-th gold step]
            early:  1 if every gold step is among the answers, else 1/n sum_j 1/k_j over those that are

    n gold steps in `row.meta[steps]`; k_j is the first answer (without the last) that is gold step j. Paper:
    Interleaved Reasoning, arXiv:2505.19640, eq. C.3 to C.5 (`base` 0.5). `verifier`: the kind
    of all answers. Edge: only the first 4 n answers count. Range [0, base].
    """

    credit: Literal["all", "share", "early"] = "early"
    base: float = 0.5
    verifier: str = "auto"
    steps: str = "steps"

    def __post_init__(self) -> None:
        load(self.verifier)

    def __call__(self, rollout: Rollout) -> float:
        steps = rollout.row.meta.get(self.steps)
        if not isinstance(steps, (list, tuple)) or not steps:
            raise ValueError(
                f"row {rollout.row.id!r}: meta[{self.steps!r}] must be a list of intermediate gold answers"
            )
        said = turns(rollout.text)
        if said is None or not judged(rollout.answer, said[-1], self.verifier):
            return 0.0
        early = said[:-1][: 4 * len(steps)]
        if self.credit == "early":
            return self.base * self.discounted(steps, early)
        right = [judged(gold, text, self.verifier) for gold, text in zip(steps, early, strict=False)]
        return self.base * (
            sum(right) / len(steps) if self.credit == "share" else float(sum(right) == len(steps))
        )

    def discounted(self, steps: Sequence[Any], said: Sequence[str]) -> float:
        """c of "early"."""
        first: dict[int, int] = {}
        for k, text in enumerate(said, 1):
            for j, gold in enumerate(steps):
                if j not in first and judged(gold, text, self.verifier):
                    first[j] = k
        return 1.0 if len(first) == len(steps) else sum(1 / k for k in first.values()) / len(steps)


def judged(gold: Any, text: str, verifier: str) -> bool:
    """Whether one answer of a response is right."""
    return verify(gold, f"<answer>{text}</answer>", verifier).correct
