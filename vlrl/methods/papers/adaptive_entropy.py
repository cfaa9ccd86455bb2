"""Skywork-OR1's adaptive entropy control: an entropy bonus whose coefficient follows a target entropy.

`adaptive_entropy` is a loss term.

Paper: He et al. 2025 (Skywork-OR1), arXiv:2505.22312, sec. 3.3 (target 0.2, delta 0.005).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.loss_term import EntropyBonus
from vlrl.plugins.contexts import PhaseContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import LossTerm, State, transient
from vlrl.types import LossInputs, UnreducedLoss


@dataclass
class AdaptiveEntropyState(State):
    """`c` is the adapted coefficient, `alpha` the coefficient in use; the others sum this step's token
    entropies."""

    c: float
    alpha: float
    entropy_sum: float = transient(0.0)
    tokens: float = transient(0.0)


@register("adaptive_entropy")
@dataclass(frozen=True, kw_only=True)
class AdaptiveEntropy(LossTerm):
    """Adaptive entropy bonus (Skywork-OR1).

        L = -alpha H,  alpha = c if the last step's entropy was at most `target`, else 0
        c <- clip(c + delta, low, high) if that entropy was below the target, else clip(c - delta, low, high)

    c begins at `start`. The entropy (nats) is the mean over the tokens of the step, on all ranks.
    Edge: the first step uses alpha = `start`; a step without tokens changes nothing.
    """

    waits_for = "an entropy below its target"
    target: float = 0.2
    delta: float = 0.005
    start: float = 0.0
    low: float = 0.0
    high: float = 1.0
    needs = ("entropy",)

    def init_state(self) -> AdaptiveEntropyState:
        return AdaptiveEntropyState(c=self.start, alpha=self.start)

    def check(self, phase: PhaseContext) -> None:
        if any(isinstance(term, EntropyBonus) and term.coef for term in phase.objective.loss_terms.values()):
            raise ConfigError(
                "loss_terms: adaptive_entropy steers the entropy to its target, and entropy_bonus adds a "
                "fixed force to it; drop one"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        self.state.entropy_sum += float((x["entropy"].detach() * x.mask_BT).sum())
        self.state.tokens += float(x.mask_BT.sum())
        return UnreducedLoss(-self.state.alpha * x["entropy"], {})

    def end_step(self, run: StepContext) -> None:
        state = self.state
        entropy = run.mean(state.entropy_sum, state.tokens)
        if not entropy:
            return
        step = self.delta if entropy < self.target else -self.delta
        state.c = min(max(state.c + step, self.low), self.high)
        state.alpha = state.c if entropy <= self.target else 0.0
        state.entropy_sum = state.tokens = 0.0

    def metrics(self) -> dict[str, float]:
        return {"entropy_coef": self.state.alpha}
