"""Log-probs of the same completion under a teacher.

A pull towards a teacher that weakens, and perhaps spares what is right already.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vlrl.functional import group_mean
from vlrl.methods.core.loss_term import KL
from vlrl.registry import ConfigError, register
from vlrl.stages import AuxTensor
from vlrl.types import LossInputs, PerToken, TokenBatch

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("kdrl.teacher_logp")
@dataclass(frozen=True, kw_only=True)
class KdrlTeacherLogp(AuxTensor):
    """log pi_T(y_t | x, y_<t), in nats, temperature-scaled as sampled, of the frozen model `model` (a name or a folder).

    Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208: per-token log-probs of the teacher on the student's own samples. The teacher is of the policy's
    family and has its tokenizer. Every rank holds a whole teacher. Edge: zero outside the completion. Raises ConfigError where no model is named, or
    where its vocabulary is another. Shapes: (B, T), no gradient.
    """

    model: str = ""
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        if not self.model:
            raise ConfigError("fields.teacher_logp.model: name the teacher, a model of the policy's family with the same tokenizer")
        policy = run.policy
        teacher = type(policy)(replace(run.family, model=self.model), device=policy.device, seed=run.seed)
        if teacher.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise ConfigError(f"fields.teacher_logp.model: {self.model!r} has another vocabulary than the policy; a teacher must share its tokenizer")
        teacher.model.eval().requires_grad_(False)
        self.held["teacher"] = teacher

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad():
            return self.held["teacher"].forward(batch)["logp"]


@register("kdrl")
@dataclass(frozen=True, kw_only=True)
class Kdrl(KL):
    """beta_t m k(u), u = log pi_T - log pi, k = u^2 / 2 (k2); beta_t = max(end, start - (start - end) step / anneal), times `coef`.

    m = 1 everywhere ("none"), 0 on rollouts above `threshold` ("response"), or 0 on groups of which any rollout is above it ("group").
    Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208: reverse KL to a teacher on own samples beside GRPO, by k2 (whose gradient is the KL's), beta
    annealed from 5e-3 to 1e-3, reward-guided masks. Deviates: the form of the annealing (linear, over `anneal` steps of the phase) is ours.
    Edge: `anneal` 0 stays at `start`.
    """

    kind: Literal["k1", "k2", "k3"] = "k2"
    ref: str = "kdrl.teacher_logp"
    start: float = 5e-3
    end: float = 1e-3
    anneal: int = 100
    mask: Literal["none", "response", "group"] = "none"
    threshold: float = 0.5
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def beta(self) -> float:
        """beta_t of the present step."""
        step = self.run.phase_step if self.run is not None else 0
        return max(self.end, self.start - (self.start - self.end) * step / self.anneal) if self.anneal else self.start

    def __call__(self, x: LossInputs) -> PerToken:
        loss_BT, metrics = super().__call__(x)
        right_B = (x.reward_B > self.threshold).to(x.logp_BT)
        wrong_B = {"none": torch.ones_like(right_B), "response": 1 - right_B, "group": (group_mean(right_B, x.group_B) == 0).to(right_B)}[self.mask]
        return PerToken(self.beta() * wrong_B[:, None] * loss_BT, {"kl_teacher": metrics["kl"]})

    def metrics(self) -> dict[str, float]:
        return {"teacher/beta": self.beta()}
