"""LASER: length-based step reward, a bonus for correct rollouts within a target length. Also LASER-D and
LASER-DE.

LASER-D sets the target by the difficulty of the prompt; LASER-DE also rewards long wrong rollouts, as
exploration.
Paper: Liu et al. 2025 (LASER, LASER-D, LASER-DE), arXiv:2505.15612, with released code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.sampling import completion_limit
from vlrl.plugins.contexts import PhaseContext, StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.types import Group

BANDS = ("low", "medium", "high")


@dataclass
class Laser2State(State):
    """By difficulty band: `lengths` of rollouts since the last estimate, and `targets`, in tokens.
    `step_lengths`: (band, lengths) of each group."""

    lengths: dict[str, list[int]] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    step_lengths: list[tuple[str, list[int]]] = transient(factory=list)


@register("laser_2")
@dataclass(frozen=True)
class Laser2(RewardShaping):
    """LASER's step reward: a correct rollout of n tokens gets r + bonus if n <= target (`form` "reward"), r -
    bonus if n > target ("penalty"), or both ("hybrid").

    Paper: Liu et al. 2025 (LASER, LASER-D, LASER-DE), arXiv:2505.15612; form, thresholds, bands and
    repetition test of the released code. Deviates: coverage is that of the rollouts of the last `every`
    steps, first of the phase's first step, where the release samples a monitoring set, first before step 1.
    Edge: a band without rollouts gets the longest completion as its target, so every correct rollout gets
    its bonus.

    Attributes:
        target: Tokens, or up to 1 a share of the longest completion (1: the longest itself).
        every: Above 0 (LASER-D) `target` is that of the first step: after it, and after every so many steps
            of the phase, each difficulty band gets its own, by `estimated_target` over thresholds from the
            share `lower` of the longest completion on, `interval` (a share) apart; the surely correct
            rollouts are floor(2 G / 3), floor(G / 3) and 1 for the bands high, medium and low, G the group
            size.
        explore: LASER-DE: a wrong, finished rollout longer than its target gets the bonus too, unless it is
            `repetitive`.
        limit: The longest completion in tokens (0: that of `sampling`).
    """

    state_class = Laser2State
    target: float = 0.5
    bonus: float = 0.5
    form: Literal["reward", "penalty", "hybrid"] = "reward"
    every: int = 0
    lower: float = 0.25
    interval: float = 0.0625
    explore: bool = False
    limit: int = 0

    def __post_init__(self) -> None:
        if self.target <= 0 or self.every < 0:
            raise ValueError(f"target={self.target} must be above 0, and every={self.every} not negative")
        if not 0 < self.lower <= 1 or not 0 < self.interval <= 1:
            raise ValueError(
                f"lower={self.lower} and interval={self.interval} are shares of the longest completion and "
                "must be in (0, 1]"
            )

    def check(self, phase: PhaseContext) -> None:
        completion_limit(phase, self.limit, "reward_shaping: `limit` of 'laser_2'")

    @property
    def longest(self) -> int:
        """The longest completion that may be sampled, in tokens."""
        return self.limit or completion_limit(self.run, 0, "reward_shaping: `limit` of 'laser_2'")

    def __call__(self, group: Group) -> list[float]:
        band = band_of(success_rate(group.rollouts))
        if self.every:
            self.state.step_lengths.append((band, [rollout.sampled_tokens for rollout in group]))
        target = self.state.targets.get(band, self.target * self.longest if self.target <= 1 else self.target)
        shaped = []
        for rollout in group:
            within = rollout.sampled_tokens <= target
            gain = self.bonus * (within and self.form != "penalty") - self.bonus * (
                not within and self.form != "reward"
            )
            if not rollout.correct:
                gain = self.bonus * (
                    self.explore and not within and not rollout.truncated and not repetitive(rollout.ids)
                )
            shaped.append(rollout.reward + gain)
        return shaped

    def end_step(self, run: StepContext) -> None:
        state = self.state
        for band, lengths in run.gather_and_clear(state.step_lengths):
            state.lengths.setdefault(band, []).extend(lengths)
        if self.every and (run.phase_step == 0 or (run.phase_step + 1) % self.every == 0):
            state.targets, state.lengths = self.estimated_targets(run.group_size), {}

    def estimated_targets(self, group_size: int) -> dict[str, int]:
        """Targets by band, from the lengths since the last estimate."""
        longest, step = self.longest, max(1, round(self.interval * self.longest))
        thresholds = range(max(1, math.ceil(self.lower * longest)), longest + 1, step)
        surely_correct = {"high": int(group_size * 2 / 3), "medium": int(group_size / 3), "low": 1}
        return {
            band: estimated_target(
                self.state.lengths.get(band, []), thresholds, surely_correct[band], longest
            )
            for band in BANDS
        }

    def metrics(self) -> dict[str, float]:
        """The targets of the next step by band, in tokens."""
        return {f"target_length/{band}": float(target) for band, target in self.state.targets.items()}


def band_of(success_rate: float) -> str:
    """The difficulty band of a prompt: "high" from a success rate of 2/3 on, "medium" from 1/3 on, else
    "low"."""
    return BANDS[(success_rate >= 1 / 3) + (success_rate >= 2 / 3)]


def estimated_target(
    lengths: Sequence[int], thresholds: Sequence[int], surely_correct: int, default: int
) -> int:
    """The smallest threshold t with floor(c(t) * surely_correct) >= 1, c(t) the share of the lengths up to t;
    `default` if there is none."""
    for threshold in thresholds:
        if lengths and int(sum(n <= threshold for n in lengths) / len(lengths) * surely_correct) >= 1:
            return min(threshold, default)
    return default


def repetitive(ids: Sequence[int]) -> bool:
    """Whether some n-gram recurs nearby (twice, from 200 tokens on three times), or an n-gram of twice that
    size recurs anywhere.

    n is 2 below 30 tokens, 3 below 100, else 4; nearby is less than a third of the tokens apart. False up to
    8 tokens.
    """
    size = 2 if len(ids) < 30 else 3 if len(ids) < 100 else 4
    if len(ids) <= 8:
        return False
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in range(len(ids) - size + 1):
        gram = tuple(ids[at : at + size])
        if size <= 2 or len(set(gram)) > 1:
            places[gram].append(at)
    min_count = 2 if len(ids) < 200 else 3
    if any(
        b - a < len(ids) // 3
        for found in places.values()
        if len(found) >= min_count
        for a, b in zip(found, found[1:])
    ):
        return True
    doubles = [tuple(ids[at : at + 2 * size]) for at in range(len(ids) - 2 * size + 1)]
    return len(ids) >= 4 * size and len(set(doubles)) < len(doubles)
