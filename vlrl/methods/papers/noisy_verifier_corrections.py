"""Noisy verifier corrections: rewards of a verifier with known error rates are corrected so that the gradient
is right on average.

Backward correction (PGBC) gives the true verdict on average, forward correction (PGFC) the direction of its
gradient. Paper: Cai et al. 2025 (PGBC, PGFC), arXiv:2510.00915, sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.methods.core.advantage import GRPO, GroupRelative, Reinforce
from vlrl.plugins.contexts import PhaseContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.types import Group, Rollout


@dataclass
class NoisyVerifierCorrectionsState(State):
    """Decayed counts of rollouts that the appeal calls correct: those that the verifier refused, and those
    that it confirmed.

    `step` has the (refused, confirmed) counts of each group of the current step.
    """

    overturned: float = 0.0
    confirmed: float = 0.0
    step: list[tuple[int, int]] = transient(factory=list)


@register("noisy_verifier_corrections")
@dataclass(frozen=True)
class NoisyVerifierCorrections(RewardShaping):
    """Corrected rewards: total + w (r' - r), r in {0, 1} the raw verdict of `slot`, w the weight of its
    reward.

        backward (PGBC): r' = (r - rho0) / (1 - rho0 - rho1)        forward (PGFC): r' = r - (1 - rho1)

    rho0 = P(r = 1 | wrong), rho1 = P(r = 0 | correct), by `row.meta["noise"]` = [rho0, rho1], else by the
    fields. Mean of backward: the true verdict; of forward: 0 if correct, -(1 - rho0 - rho1) if wrong, so only
    rho1 has to be known. Paper: Cai et al. 2025, arXiv:2510.00915, eq. 3, prop. 3.4, algorithm 2. Deviates:
    the appeal judges every rollout (paper: some refused); counts decay by group. Edge: with one rate per
    group, division by the std undoes both, a group's mean the forward one: refused. Other r: ValueError.

    Attributes:
        slot: "" is the row's outcome reward.
        appeal: Slot of a better verifier (weight 0): rho1 = overturned / (overturned + confirmed), overturned
            the rollouts with r = 0 that the appeal calls correct, confirmed those with r = 1; a step's
            groups, of all ranks, count from the next step.
        decay: Of these counts, per group.
    """

    state_class = NoisyVerifierCorrectionsState
    mode: Literal["backward", "forward"] = "backward"
    rho0: float = 0.0
    rho1: float = 0.1
    appeal: str = ""
    decay: float = 0.99
    slot: str = ""

    def __post_init__(self) -> None:
        if min(self.rho0, self.rho1) < 0 or self.rho0 + self.rho1 >= 1:
            raise ValueError(
                f"rho0={self.rho0} and rho1={self.rho1} must not be negative, and their sum must be below "
                "1: better than chance"
            )
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must be in (0, 1]")

    def check(self, phase: PhaseContext) -> None:
        for key, slot in (("slot", self.slot), ("appeal", self.appeal)):
            if slot and slot not in phase.rewards:
                raise ConfigError(
                    f"reward_shaping: {key}={slot!r} of {self.name!r} is no reward slot; known: "
                    f"{', '.join(phase.rewards)}"
                )
        forward = self.mode == "forward"
        centred = isinstance(phase.advantage, GroupRelative) or (
            isinstance(phase.advantage, Reinforce) and phase.advantage.decay > 0
        )
        scaled = isinstance(phase.advantage, GRPO) and phase.advantage.scale != "none"
        if scaled or (forward and centred):
            what = (
                "divides by the std of rewards"
                if scaled
                else "subtracts a mean, which is all that the forward correction changes"
            )
            raise ConfigError(
                f"reward_shaping: advantage {phase.advantage.name!r} {what}, so the correction of "
                f"{self.name!r} would have no effect; "
                "use advantage: {name: reinforce, decay: 0}, or, for mode: backward, advantage: {name: "
                "grpo, scale: none}"
            )

    def __call__(self, group: Group) -> list[float]:
        if not len(group):
            return []
        slot = self.slot or self.run.outcome_slot(group.row)
        verdicts = group.raw(slot)
        if not set(verdicts) <= {0.0, 1.0}:
            raise ValueError(
                f"reward_shaping: reward slot {slot!r} gave {sorted(set(verdicts))}; {self.name!r} "
                "corrects verdicts of 0 or 1"
            )
        if self.appeal:
            self.state.step.append(self.appealed(verdicts, group.rollouts))
        rho0, rho1 = group.row.meta.get("noise", (self.rho0, self.rate))
        backward = self.mode == "backward"
        corrected = [(r - rho0) / (1 - rho0 - rho1) if backward else r - (1 - rho1) for r in verdicts]
        weight = self.run.rewards[slot].weight
        return [rollout.reward + weight * (new - r) for rollout, new, r in zip(group, corrected, verdicts)]

    def appealed(self, verdicts: Sequence[float], rollouts: Sequence[Rollout]) -> tuple[int, int]:
        """How many rollouts that the appeal calls correct the verifier refused, and how many it confirmed."""
        appeal = self.run.rewards[self.appeal]
        correct = [
            verdict
            for verdict, rollout in zip(verdicts, rollouts, strict=True)
            if appeal.correct(rollout, rollout.rewards[self.appeal])
        ]
        return correct.count(0.0), correct.count(1.0)

    @property
    def rate(self) -> float:
        """rho1: `rho1` until an appeal has found a correct rollout, then the estimate, at most 0.9 (1 -
        rho0)."""
        correct = self.state.overturned + self.state.confirmed
        return min(self.state.overturned / correct, 0.9 * (1 - self.rho0)) if correct else self.rho1

    def end_step(self, run: StepContext) -> None:
        counts, state = run.gather_and_clear(self.state.step), self.state
        factor = self.decay ** len(counts)
        state.overturned = factor * state.overturned + sum(overturned for overturned, _ in counts)
        state.confirmed = factor * state.confirmed + sum(confirmed for _, confirmed in counts)

    def metrics(self) -> dict[str, float]:
        """rho1 of the next step."""
        return {"noisy_verifier/rho1": self.rate}
