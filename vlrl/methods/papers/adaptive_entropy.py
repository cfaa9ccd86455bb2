"""An entropy bonus that switches itself on and off."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import LossTerm
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("adaptive_entropy")
@dataclass(frozen=True, kw_only=True)
class AdaptiveEntropy(LossTerm):
    """L = -alpha H,  alpha = c if the last step's entropy was at most `target`, else 0;  c goes up by `delta` below the target, else down.

    c starts at `start` and stays in [low, high]. The entropy (nats) is the mean over the tokens of the step, on all ranks.
    Paper: He et al. 2025 (Skywork-OR1), arXiv:2505.22312, sec. 3.3 (target 0.2, delta 0.005).  Edge: the first step uses c = `start`.
    """

    target: float = 0.2
    delta: float = 0.005
    start: float = 0.0
    low: float = 0.0
    high: float = 1.0
    needs = ("entropy",)
    state: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.state.update(c=self.start, alpha=self.start, total=0.0, count=0.0)

    def check(self, run: RunContext) -> None:
        if any(term.name == "entropy_bonus" and term.coef for term in run.objective.loss_terms.values()):
            raise ConfigError("loss_terms: adaptive_entropy steers the entropy to its target, and a fixed entropy term pulls against it; drop one")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> PerToken:
        self.state["total"] += float((x["entropy"].detach() * x.mask_BT).sum())
        self.state["count"] += float(x.mask_BT.sum())
        return PerToken(-self.state["alpha"] * x["entropy"], {})

    def metrics(self) -> dict[str, float]:
        state = self.state
        now = self.run.mean(state["total"], state["count"])
        if not now:  # a step that learned nothing says nothing
            return {"entropy_coef": state["alpha"]}
        step = self.delta if now < self.target else -self.delta
        c = min(max(state["c"] + step, self.low), self.high)
        state.update(c=c, alpha=c if now <= self.target else 0.0, total=0.0, count=0.0)
        return {"entropy_coef": state["alpha"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)
