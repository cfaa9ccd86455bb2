"""Rewards of a verifier that errs, put right on average."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("noisy_verifier_corrections")
@dataclass(frozen=True)
class NoisyVerifierCorrections(ReadsAccuracy, RewardShaping):
    """total + w (r' - r), r in {0, 1} the raw verdict of `slot`, w its weight.  backward: r' = (r - rho0) / (1 - rho0 - rho1);
    forward: r' = r - (1 - rho1).

    rho0 = P(r = 1 | wrong), rho1 = P(r = 0 | right). Backward is the true verdict on average; forward is 0 on average for a right rollout and
    -(1 - rho0 - rho1) for a wrong one, so that the gradient points where the true verdicts' would and only rho1 has to be known.
    `row.meta["noise"]` = [rho0, rho1] goes before the fields. `slot`: empty: the first reward with a weight. `appeal`: the slot of a better
    verifier (weight 0); rho1 is then estimated as overturned / (overturned + confirmed), where overturned are the rollouts with r = 0 that the
    appeal calls right, counts that are forgotten at `decay` per group; a step's groups, those of all ranks, count once it is over.
    Paper: Cai et al. 2025 (PGBC, PGFC), arXiv:2510.00915. Deviates: no code was found; the estimate takes a rule-based appeal of every rollout
    where the paper appeals a sample to a small language model. Edge: rates that are the same for all rollouts of a group are an affine map,
    which division by the group's std undoes: use an advantage that does not divide (grpo with scale none; reinforce with decay 0 for forward). A
    verdict other than 0 and 1 raises ValueError.
    """

    mode: Literal["backward", "forward"] = "backward"
    rho0: float = 0.0
    rho1: float = 0.1
    appeal: str = ""
    decay: float = 0.99
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)
    counts: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)
    fresh: list[tuple[int, int]] = field(init=False, default_factory=list, repr=False, compare=False)  # of this step, by group
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if min(self.rho0, self.rho1) < 0 or self.rho0 + self.rho1 >= 1:
            raise ValueError(f"rho0, rho1: rates of a verifier better than chance add up to less than 1, got {self.rho0} and {self.rho1}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must be in (0, 1]")

    def check(self, run: RunContext) -> None:
        self.check_slot(run)
        if self.appeal and self.appeal not in run.rewards:
            raise ConfigError(f"shape.noisy_verifier.appeal: no reward slot {self.appeal!r}; known: {', '.join(run.rewards)}")
        if getattr(run.advantage, "scale", "none") != "none":
            raise ConfigError(
                f"shape.noisy_verifier: advantage {run.advantage.name!r} divides by the std of rewards, which undoes the correction; "
                "use advantage: {name: grpo, scale: none}, or reinforce"
            )

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self.held["run"] = run
        self.held["weight"] = run.rewards[self.seen["slot"]].weight

    def __call__(self, group: Group) -> list[float]:
        verdicts = [self.accuracy(rollout) for rollout in group]
        if not set(verdicts) <= {0.0, 1.0}:
            raise ValueError(f"shape.noisy_verifier: slot {self.seen['slot']!r} gave {sorted(set(verdicts))}; verdicts are 0 or 1")
        if self.appeal:
            self.fresh.append(self.judged(verdicts, group.raw(self.appeal)))
        rho0, rho1 = group.row.meta.get("noise", (self.rho0, self.rate))
        backward = self.mode == "backward"
        corrected = [(r - rho0) / (1 - rho0 - rho1) if backward else r - (1 - rho1) for r in verdicts]
        return [rollout.reward + self.held["weight"] * (new - r) for rollout, new, r in zip(group, corrected, verdicts)]

    @property
    def rate(self) -> float:
        """rho1, as estimated where there is an appeal; `rho1` until it has seen a right rollout. At most 0.9, less rho0."""
        right = sum(self.counts.values())
        return min(self.counts["overturned"] / right, 0.9 * (1 - self.rho0)) if right else self.rho1

    def judged(self, verdicts: list[float], appeals: list[float]) -> tuple[int, int]:
        """How many rollouts that are right by the appeal the verifier refused, and how many it confirmed."""
        right = [verdict for verdict, appeal in zip(verdicts, appeals, strict=True) if appeal > 0.5]
        return right.count(0.0), right.count(1.0)

    def metrics(self) -> dict[str, float]:
        """Called once per step on every rank: counts its groups."""
        found = self.held["run"].gather_and_clear(self.fresh)
        for index, name in enumerate(("overturned", "confirmed")):
            self.counts[name] = self.decay ** len(found) * self.counts.get(name, 0.0) + sum(group[index] for group in found)
        return {"noisy_verifier/rho1": self.rate}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.counts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.clear()
        self.counts.update(state)
