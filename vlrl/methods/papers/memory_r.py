"""A memory of answers that were right and answers that were wrong, to be near the ones and unlike all."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext

SIZE = 256


def embedded(text: str) -> list[float]:
    """Counts of the text's character trigrams, hashed to `SIZE` places, as a vector of length 1 (0 for nothing)."""
    vector = np.zeros(SIZE)
    padded = f" {' '.join(text.casefold().split())[:4000]} "
    for at in range(len(padded) - 2):
        vector[zlib.crc32(padded[at : at + 3].encode()) % SIZE] += 1.0
    norm = float(np.linalg.norm(vector))
    return [round(float(v), 4) for v in (vector / norm if norm and text.strip() else 0.0 * vector)]


def nearest(question: Sequence[float], answer: Sequence[float], kept: Sequence[tuple[Sequence[float], Sequence[float]]], k: int) -> float | None:
    """The largest cosine of `answer` with the answers kept for the k questions most like `question`; None of nothing."""
    if not kept:
        return None
    like = np.asarray([q for q, _ in kept]) @ np.asarray(question)
    near = np.argsort(-like, kind="stable")[:k]
    return float(max(np.asarray(kept[i][1]) @ np.asarray(answer) for i in near))


@register("memory_r")
@dataclass(frozen=True)
class MemoryR(ReadsAccuracy, RewardShaping):
    """r + exploit n(s_right - s_wrong) + explore n(1 - s_any), s the largest cosine with the answers kept for the `k` most similar questions.

    s_right, s_wrong, s_any: among answers that were right, that were wrong, among both. n scales to [0, 1] by the least and largest of the last
    `window` values. The answers of a step, on all ranks, join the memory once it is over; each half keeps its last `most`.
    Paper: Le et al. 2025 (Memory-R+), arXiv:2504.02273 (memories of successes and failures, kNN, exploit and explore rewards); released code: novelty
    1 - max cosine, normalised over the last 100. Deviates: texts are embedded by hashed character trigrams, not by a sentence encoder; the
    exploit term and both weights are ours. Edge: an empty memory gives nothing.
    """

    exploit: float = 0.1
    explore: float = 0.1
    k: int = 5
    most: int = 200
    window: int = 100
    least: float = 0.5
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)
    state: dict[str, list[Any]] = field(
        init=False, default_factory=lambda: {"right": [], "wrong": [], "exploit": [], "explore": []}, repr=False, compare=False
    )

    fresh: list[dict[str, Any]] = field(init=False, default_factory=list, repr=False, compare=False)  # of this step, by group
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if min(self.k, self.most, self.window) < 1:
            raise ValueError(f"k, most, window: must be at least 1, got {self.k}, {self.most} and {self.window}")

    def check(self, run: RunContext) -> None:
        self.check_slot(run)

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> list[float]:
        question, fresh = embedded(group.row.question), {name: [] for name in self.state}
        shaped = []
        for rollout in group:
            answer = embedded(rollout.text)
            shaped.append(rollout.reward + self.bonus(question, answer, fresh))
            fresh["right" if self.accuracy(rollout) > self.least else "wrong"].append([question, answer])
        self.fresh.append(fresh)
        return shaped

    def bonus(self, question: Sequence[float], answer: Sequence[float], fresh: dict[str, list[Any]]) -> float:
        """What the memory adds to one answer's reward; its two values are noted in `fresh`."""
        right, wrong = (nearest(question, answer, self.state[half], self.k) for half in ("right", "wrong"))
        known = [s for s in (right, wrong) if s is not None]
        if not known:
            return 0.0
        values = {"exploit": (right or 0.0) - (wrong or 0.0), "explore": 1 - max(known)}
        for name, value in values.items():
            fresh[name].append(value)
        return self.exploit * self.scaled("exploit", values["exploit"]) + self.explore * self.scaled("explore", values["explore"])

    def scaled(self, name: str, value: float) -> float:
        """The value between the least and the largest of the last ones; 0 where they are all alike."""
        low, high = min([value, *self.state[name]]), max([value, *self.state[name]])
        return (value - low) / (high - low) if high > low else 0.0

    def metrics(self) -> dict[str, float]:
        """Called once per step on every rank: remembers it."""
        for fresh in self.run.gather_and_clear(self.fresh):
            for name, values in fresh.items():
                self.state[name].extend(values)
                del self.state[name][: -(self.most if name in ("right", "wrong") else self.window)]
        return {f"memory/{half}": float(len(self.state[half])) for half in ("right", "wrong")}

    def state_dict(self) -> dict[str, Any]:
        return {name: list(values) for name, values in self.state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update({name: list(values) for name, values in state.items()})
