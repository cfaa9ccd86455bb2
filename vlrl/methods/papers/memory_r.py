"""Memory-R+: intrinsic rewards from an episodic memory of the model's own correct and wrong answers to similar questions.

Paper: Le et al. 2025 (Memory-R+), arXiv:2504.02273, with released code.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlrl.context import RunContext
from vlrl.registry import register
from vlrl.stages import RewardShaping, State, transient
from vlrl.types import Group

SIZE = 256  # of an embedding


@dataclass
class MemoryRState(State):
    """The memory: [question embedding, answer embedding] of `correct` and `wrong` answers, and the last values of the two rewards.

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
    """Memory-R+'s rewards: r + exploit n(s_correct - s_wrong) + explore n(1 - s_any), s the largest cosine with answers of the `k` nearest questions.

    s_correct, s_wrong, s_any: among the remembered answers that were correct, that were wrong, among both. n scales to [0, 1] by the smallest and the
    largest of the last `window` values. The answers of a step, on all ranks, join the memory at its end; `correct` and `wrong` keep their last
    `capacity` answers each.
    Paper: Le et al. 2025 (Memory-R+), arXiv:2504.02273 (memories of successes and failures, kNN, exploit and explore rewards); released code: novelty
    1 - max cosine, normalised over the last 100. Deviates: texts are embedded by hashed character trigrams, not by a sentence encoder; the
    exploit term and both weights are ours. Edge: with an empty memory rewards are unchanged.
    """

    exploit: float = 0.1
    explore: float = 0.1
    k: int = 5
    capacity: int = 200
    window: int = 100

    def __post_init__(self) -> None:
        if min(self.k, self.capacity, self.window) < 1:
            raise ValueError(f"k={self.k}, capacity={self.capacity} and window={self.window} must be at least 1")

    def init_state(self) -> MemoryRState:
        return MemoryRState()

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

    def bonus(self, question: Sequence[float], answer: Sequence[float], additions: dict[str, list[Any]]) -> float:
        """What is added to the reward of an answer; its two values are appended to `additions`."""
        s_correct, s_wrong = (nearest(question, answer, memory, self.k) for memory in (self.state.correct, self.state.wrong))
        known = [s for s in (s_correct, s_wrong) if s is not None]
        if not known:
            return 0.0
        exploit, explore = (s_correct or 0.0) - (s_wrong or 0.0), 1 - max(known)
        additions["exploit"].append(exploit)
        additions["explore"].append(explore)
        return self.exploit * scaled(exploit, self.state.exploit) + self.explore * scaled(explore, self.state.explore)

    def end_step(self, run: RunContext) -> None:
        state = self.state
        for additions in run.gather_and_clear(state.step):
            for values, kept in ((state.correct, "correct"), (state.wrong, "wrong"), (state.exploit, "exploit"), (state.explore, "explore")):
                values.extend(additions[kept])
                del values[: -(self.capacity if kept in ("correct", "wrong") else self.window)]

    def metrics(self) -> dict[str, float]:
        """The number of remembered answers."""
        return {"memory/correct": float(len(self.state.correct)), "memory/wrong": float(len(self.state.wrong))}


def embedding(text: str) -> list[float]:
    """Counts of the text's character trigrams, hashed to `SIZE` entries, as a vector of length 1 (zeros for a blank text)."""
    vector = np.zeros(SIZE)
    padded = f" {' '.join(text.casefold().split())[:4000]} "
    for at in range(len(padded) - 2):
        vector[zlib.crc32(padded[at : at + 3].encode()) % SIZE] += 1.0
    norm = float(np.linalg.norm(vector))
    return [round(float(v), 4) for v in (vector / norm if norm and text.strip() else 0.0 * vector)]


def nearest(question: Sequence[float], answer: Sequence[float], memory: Sequence[Sequence[Sequence[float]]], k: int) -> float | None:
    """The largest cosine of `answer` with the answers remembered for the k questions most similar to `question`; None for an empty memory."""
    if not memory:
        return None
    similarity = np.asarray([q for q, _ in memory]) @ np.asarray(question)
    neighbours = np.argsort(-similarity, kind="stable")[:k]
    return float(max(np.asarray(memory[i][1]) @ np.asarray(answer) for i in neighbours))


def scaled(value: float, last: Sequence[float]) -> float:
    """The value scaled to [0, 1] by the smallest and the largest of it and the last values; 0 where all are equal."""
    low, high = min([value, *last]), max([value, *last])
    return (value - low) / (high - low) if high > low else 0.0
