"""Whether a rollout goes round in circles.

A step at a target length for right answers; the target may follow how hard a prompt is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlrl.methods.common.limits import completion_limit
from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


def repetitive(ids: Sequence[int]) -> bool:
    """Whether some n-gram comes back close by (twice, in 200 tokens and more three times), or one of twice its length at all."""
    size = 2 if len(ids) < 30 else 3 if len(ids) < 100 else 4
    if len(ids) <= 8:
        return False
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in range(len(ids) - size + 1):
        gram = tuple(ids[at : at + size])
        if size <= 2 or len(set(gram)) > 1:
            places[gram].append(at)
    often = 2 if len(ids) < 200 else 3
    if any(b - a < len(ids) // 3 for found in places.values() if len(found) >= often for a, b in zip(found, found[1:])):
        return True
    doubles = [tuple(ids[at : at + 2 * size]) for at in range(len(ids) - 2 * size + 1)]
    return len(ids) >= 4 * size and len(set(doubles)) < len(doubles)


BANDS = ("low", "medium", "high")


def band_of(share: float) -> str:
    """How easy a prompt is: "high" from 2/3 right rollouts on, "medium" from 1/3 on, else "low"."""
    return BANDS[(share >= 1 / 3) + (share >= 2 / 3)]


def target_of(lengths: Sequence[int], thresholds: Sequence[int], least_right: int, default: int) -> int:
    """The smallest threshold t with floor(c(t) * least_right) >= 1, c(t) the share of the lengths up to t; `default` if there is none."""
    for threshold in thresholds:
        if lengths and int(sum(n <= threshold for n in lengths) / len(lengths) * least_right) >= 1:
            return min(threshold, default)
    return default


@register("laser_2")
@dataclass(frozen=True)
class Laser2(ReadsAccuracy, RewardShaping):
    """A right rollout of n tokens: r + bonus if n <= target (form "reward"), r - bonus if n > target ("penalty"), or both ("hybrid").

    `target` in tokens, or at most 1 a share of the longest completion (1: the longest itself). With `every` > 0 it only begins there: every `every`
    steps of the phase each band of difficulty gets its own (`target_of` over thresholds from the share `lower` of the longest completion on,
    `interval` apart; least_right is floor(2 G / 3), floor(G / 3) and 1 for the bands high, medium and low, G the group's size). `explore`: a wrong,
    finished rollout longer than its target gets the bonus too, if it is not `repetitive`.
    Paper: Liu et al. 2025 (LASER, LASER-D, LASER-DE), arXiv:2505.15612; form, thresholds, bands and repetition test of the released code.
    Deviates: coverage is that of the rollouts of the last `every` steps, where the release samples a monitoring set. Edge: a band nobody was
    seen in keeps the longest completion: every right rollout gets its bonus.
    """

    target: float = 0.5
    bonus: float = 0.5
    form: Literal["reward", "penalty", "hybrid"] = "reward"
    every: int = 0
    lower: float = 0.25
    interval: float = 0.0625
    explore: bool = False
    least: float = 0.5
    slot: str = ""
    limit: int = 0
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"lengths": {}, "targets": {}}, repr=False, compare=False)
    fresh: list[tuple[str, list[int]]] = field(init=False, default_factory=list, repr=False, compare=False)  # of this step, by group
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.target <= 0 or self.every < 0 or not 0 < self.lower <= 1 or not 0 < self.interval <= 1:
            raise ValueError(
                f"target, every, lower, interval: must be above 0 (every may be 0; lower and interval are shares), got {self.target}, {self.every}, "
                f"{self.lower}, {self.interval}"
            )

    def check(self, run: RunContext) -> None:
        self.check_slot(run)
        completion_limit(run, self.limit, "shape.length_step.limit")

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        object.__setattr__(self, "run", run)

    @property
    def longest(self) -> int:
        """The longest completion that may be sampled, in tokens."""
        return self.limit or completion_limit(self.run, 0, "shape.length_step.limit")

    def __call__(self, group: Group) -> list[float]:
        right = [self.accuracy(rollout) > self.least for rollout in group]
        band = band_of(sum(right) / len(right))
        if self.every:
            self.fresh.append((band, [len(rollout) for rollout in group]))
        target = self.state["targets"].get(band, self.target * self.longest if self.target <= 1 else self.target)
        shaped = []
        for rollout, ok in zip(group, right):
            within = len(rollout) <= target
            gain = self.bonus * (within and self.form != "penalty") - self.bonus * (not within and self.form != "reward")
            if not ok:
                gain = self.bonus * (self.explore and not within and not rollout.truncated and not repetitive(rollout.ids))
            shaped.append(rollout.reward + gain)
        return shaped

    def estimate(self) -> dict[str, int]:
        """Targets by band, from the lengths since the last estimate."""
        longest, apart, size = self.longest, max(1, round(self.interval * self.longest)), self.run.group_size
        thresholds = range(max(1, math.ceil(self.lower * longest)), longest + 1, apart)
        surely_right = {"high": int(size * 2 / 3), "medium": int(size / 3), "low": 1}
        return {band: target_of(self.state["lengths"].get(band, []), thresholds, surely_right[band], longest) for band in BANDS}

    def metrics(self) -> dict[str, float]:
        """Called once per step on every rank: the lengths of all of them, and the next step's targets."""
        for band, lengths in self.run.gather_and_clear(self.fresh):
            self.state["lengths"].setdefault(band, []).extend(lengths)
        if self.every and (self.run.phase_step + 1) % self.every == 0:
            self.state.update(targets=self.estimate(), lengths={})
        return {f"length_step/{band}": float(target) for band, target in self.state["targets"].items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)
