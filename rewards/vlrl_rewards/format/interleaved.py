"""Interleaved reasoning: think, answer a part, think, answer the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.verification import load, verify

_MARK = re.compile(r"<(/?)(think|answer)>", re.IGNORECASE)
_ORDER = ("<think>", "</think>", "<answer>", "</answer>")


def turns(text: str) -> list[str] | None:
    """The answers of a text of one or more `<think>...</think><answer>...</answer>` and nothing else; None for any other text."""
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


_CREDIT: dict[str, Callable[[list[bool]], float]] = {
    "all": lambda right: float(all(right)),
    "share": lambda right: sum(right) / len(right),
    "early": lambda right: sum(ok / k for k, ok in enumerate(right, 1)) / sum(1 / k for k in range(1, len(right) + 1)),
}


@register("interleaved")
@dataclass(frozen=True, kw_only=True)
class Interleaved(Reward):
    """Interleaved reasoning: final accuracy, and credit for intermediate answers.

        r = 1[final answer correct] (1 + weight_steps c)
        c = all:    1[every step correct]
            share:  correct steps / steps
            early:  correct steps with weights 1/k

    Paper: Interleaved Reasoning, arXiv:2505.19640 (final accuracy, and credit for intermediate answers only where the final one is correct:
    all-or-none, partial, time-discounted). Deviates: the format term (+-1) is a separate reward; the third condition of the paper (the accuracy of
    the batch improves) is left out; the weights 1/k are ours.
    Reads `row.meta[steps]`: the gold of every answer before the last; `verifier`: the kind of all answers.
    Edge: a text in another format, or with a different number of answers: 0. No steps raise ValueError. Range [0, 1 + weight_steps].
    """

    credit: Literal["all", "share", "early"] = "share"
    weight_steps: float = 0.5
    verifier: str = "auto"
    steps: str = "steps"

    def __post_init__(self) -> None:
        load(self.verifier)

    def __call__(self, rollout: Rollout) -> float:
        steps = rollout.row.meta.get(self.steps)
        if not isinstance(steps, (list, tuple)) or not steps:
            raise ValueError(f"row {rollout.row.id!r}: meta[{self.steps!r}] must be a list of intermediate gold answers")
        said = turns(rollout.text)
        if said is None or len(said) != len(steps) + 1:
            return 0.0
        right = [verify(gold, f"<answer>{text}</answer>", self.verifier).correct for gold, text in zip([*steps, rollout.answer], said, strict=True)]
        return right[-1] * (1.0 + self.weight_steps * _CREDIT[self.credit](right[:-1]))
