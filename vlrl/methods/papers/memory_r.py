"""Memory-R+: intrinsic rewards from an episodic memory of the model's own correct and wrong answers to
similar questions.

Paper: Le et al. 2025 (Memory-R+), arXiv:2504.02273, with released code.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlrl.plugins.contexts import StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.types import Group

SIZE = 256  # of an embedding


@dataclass
class MemoryRState(State):
    """The memory: [question embedding, answer embedding] of `correct` and `wrong` answers, and the last
    values of the two rewards.

    `step` has the additions of the current step, one dictionary of the four lists per group.
    """

    correct: list[list[Any]] = field(default_factory=list)
    wrong: list[list[Any]] = field(default_factory=list)
    exploit: list[float] = field(default_factory=list)
    explore: list[float] = field(default_factory=list)
    step: list[dict[str, list[Any]]] = transient(factory=list)


@register("memory_r")
@dataclass(frozen=True)
class MemoryR(RewardShaping):
    """Memory-R+'s rewards: r + exploit (1 - n(d)) + explore n(1 - s).

    d is the distance of the answer from the mean of the remembered correct answers, s its largest cosine with
    the remembered wrong ones. n scales to [0, 1] by the extremes of the last `window` values (the first:
    itself, at most 1, for d, 0 for s). Paper: Le et al. 2025 (Memory-R+), arXiv:2504.02273; released code:
    thaihungle/Memory-R at a193f4f, rewards/ir_knn_st.py and run_gsm8k.py (both weights 1, k 1, window 100,
    500 questions). Deviates: texts are embedded by hashed character trigrams, not a sentence encoder;
    answers, of all ranks, join at the end of their step. Edge: with an empty memory its term is 0.

    Attributes:
        k: Answers of so many most similar questions are compared.
        explore_from: Questions with wrong answers from which on the explore term counts.
        capacity: Last answers that `correct` and `wrong` keep each.
    """

    state_class = MemoryRState
    exploit: float = 1.0
    explore: float = 1.0
    k: int = 1
    capacity: int = 200
    window: int = 100
    explore_from: int = 1

    def __post_init__(self) -> None:
        if min(self.k, self.capacity, self.window, self.explore_from) < 1:
            raise ValueError(
                f"k={self.k}, capacity={self.capacity}, window={self.window} and "
                f"explore_from={self.explore_from} must be at least 1"
            )

    def __call__(self, group: Group) -> list[float]:
        question = embedding(group.row.question)
        additions: dict[str, list[Any]] = {"correct": [], "wrong": [], "exploit": [], "explore": []}
        shaped = []
        for rollout in group:
            answer = embedding(rollout.text)
            shaped.append(rollout.reward + self.bonus(question, answer, additions))
            additions["correct" if rollout.correct else "wrong"].append([question, answer])
        self.state.step.append(additions)
        return shaped

    def bonus(
        self, question: Sequence[float], answer: Sequence[float], additions: dict[str, list[Any]]
    ) -> float:
        """What is added to the reward of an answer; its two values are appended to `additions`."""
        total, given = 0.0, np.asarray(answer)
        if correct := neighbours(question, self.state.correct, self.k):
            distance = float(np.linalg.norm(given - np.mean(correct, axis=0)))
            additions["exploit"].append(distance)
            total += self.exploit * (1 - scaled(distance, self.state.exploit, alone=min(1.0, distance)))
        wrong = neighbours(question, self.state.wrong, self.k)
        if wrong and len({tuple(asked) for asked, _ in self.state.wrong}) >= self.explore_from:
            novelty = 1 - max(float(np.asarray(one) @ given) for one in wrong)
            additions["explore"].append(novelty)
            total += self.explore * scaled(novelty, self.state.explore, alone=0.0)
        return total

    def end_step(self, run: StepContext) -> None:
        state = self.state
        for additions in run.gather_and_clear(state.step):
            for values, kept in (
                (state.correct, "correct"),
                (state.wrong, "wrong"),
                (state.exploit, "exploit"),
                (state.explore, "explore"),
            ):
                values.extend(additions[kept])
                del values[: -(self.capacity if kept in ("correct", "wrong") else self.window)]

    def metrics(self) -> dict[str, float]:
        """The number of remembered answers."""
        return {
            "memory/correct": float(len(self.state.correct)),
            "memory/wrong": float(len(self.state.wrong)),
        }


def embedding(text: str) -> list[float]:
    """Counts of the text's character trigrams, hashed to `SIZE` entries, as a vector of length 1 (zeros for a
    blank text)."""
    vector = np.zeros(SIZE)
    padded = f" {' '.join(text.casefold().split())[:4000]} "
    for at in range(len(padded) - 2):
        vector[zlib.crc32(padded[at : at + 3].encode()) % SIZE] += 1.0
    norm = float(np.linalg.norm(vector))
    return [round(float(v), 4) for v in (vector / norm if norm and text.strip() else 0.0 * vector)]


def neighbours(
    question: Sequence[float], memory: Sequence[Sequence[Sequence[float]]], k: int
) -> list[Sequence[float]]:
    """The answers remembered for the k questions most similar to `question`."""
    asked = list(dict.fromkeys(tuple(q) for q, _ in memory))
    if not asked:
        return []
    order = np.argsort(-(np.asarray(asked) @ np.asarray(question)), kind="stable")[:k]
    chosen = {asked[i] for i in order}
    return [answer for q, answer in memory if tuple(q) in chosen]


def scaled(value: float, last: Sequence[float], alone: float) -> float:
    """The value scaled to [0, 1] by the smallest and the largest of it and the last values; `alone` where all
    are equal."""
    low, high = min([value, *last]), max([value, *last])
    return (value - low) / (high - low) if high > low else alone
