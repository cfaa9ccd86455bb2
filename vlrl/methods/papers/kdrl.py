"""KDRL: knowledge distillation and reinforcement learning on the same samples, by a reverse KL to a teacher
beside GRPO.

    kdrl.teacher_logp   aux tensor: log-probs of the completions under the teacher
    kdrl                loss term: the annealed, optionally masked KL to the teacher

Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208, eq. 8. No code of the authors was found; inclusionAI/AReaL has
its joint loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.functional import group_mean
from vlrl.methods.common.correctness import correct_rollouts
from vlrl.methods.common.token_memory import TokenMemory, check_capacity
from vlrl.methods.core.loss_term import KL
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AuxTensor, State, transient
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, PerToken, TokenBatch

START = "start"  # as `model`: the policy as it is at the start


@dataclass
class TeacherState(State):
    """`teacher` is the frozen teacher, of the policy's class; `own` the policy where its first weights are
    the teacher; `memory` has what it said.

    Saved are the weights of `own`.
    """

    teacher: Any = transient()
    own: Any = transient()
    memory: TokenMemory = transient(factory=lambda: TokenMemory(0))

    def state_dict(self) -> dict[str, Any]:
        return self.own.reference_state() if self.own is not None else {}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        if self.own is not None:
            self.own.load_reference(values)


@register("kdrl.teacher_logp")
@dataclass(frozen=True, kw_only=True)
class KdrlTeacherLogp(AuxTensor):
    """The teacher's log-probs: log pi_T(y_t | x, y_<t) in nats, temperature-scaled as sampled, of the frozen
    model `model` (a name or a folder).

    Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208: per-token log-probs of the teacher on the student's own
    samples. The teacher is of the policy's family and has its tokenizer; every rank holds a whole one. Edge:
    zero outside the completion. Raises ConfigError where no model is named, or where its vocabulary differs
    from the policy's. Shapes: (B, T), no gradient.

    Attributes:
        model: `start` takes the policy's reference, its weights at the start of the phase (of the run, where
            a KL holds them already): after a cold start on a teacher's texts they imitate the teacher.
        remember: Number of tokens whose values are kept for rollouts that come again, as in `ref_logp`.
    """

    model: str = ""
    remember: int = 1 << 22

    def __post_init__(self) -> None:
        check_capacity(self.remember)

    def init_state(self) -> TeacherState:
        return TeacherState(memory=TokenMemory(self.remember))

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if not self.model:
            raise ConfigError(
                "aux_tensors: kdrl.teacher_logp has no `model`; name the teacher, a model of the policy's "
                "family with the same tokenizer: "
                "aux_tensors={kdrl.teacher_logp: {model: PATH}}, or `start` for the policy as it is when "
                "the phase starts"
            )
        policy = run.policy
        if self.model == START:
            policy.keep_reference()
            self.state.own = policy
            return
        teacher = policy.load_other(self.model, run.seed)
        if teacher.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise ConfigError(
                f"aux_tensors: kdrl.teacher_logp has model={self.model!r}, whose vocabulary differs from "
                "the policy's; name one with its tokenizer"
            )
        teacher.model.eval().requires_grad_(False)
        self.state.teacher = teacher

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        teacher = policy.reference() if self.state.own is not None else nullcontext(self.state.teacher)
        with torch.no_grad(), teacher as model:
            return self.state.memory(self.run, model.model, batch, lambda part: model.forward(part)["logp"])


@register("kdrl")
@dataclass(frozen=True, kw_only=True)
class Kdrl(KL):
    """KDRL's distillation loss: beta_t m k(u), u = log pi_T - log pi, k = u^2 / 2 (k2).

        beta_t = max(end, start - (start - end) step / anneal), times `coef`

    m is 1 everywhere (`mask` "none"), 0 on correct rollouts ("response"), or 0 on groups with a correct
    rollout ("group"). Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208, eq. 8: reverse KL to a teacher on the
    policy's own samples beside GRPO, by k2 (whose gradient is the KL's), beta annealed from 5e-3 to 1e-3,
    reward-guided masks. Deviates: the form of the annealing (linear, over `anneal` steps of the phase) is
    ours. Edge: `anneal` 0 keeps `start`.
    """

    estimator: Literal["k1", "k2", "k3"] = "k2"
    ref: str = "kdrl.teacher_logp"
    start: float = 5e-3
    end: float = 1e-3
    anneal: int = 100
    mask: Literal["none", "response", "group"] = "none"

    def beta(self) -> float:
        """beta_t of the current step; `start` before the plug-in is set up."""
        step = self.run.phase_step if self.is_set_up else 0
        return (
            max(self.end, self.start - (self.start - self.end) * step / self.anneal)
            if self.anneal
            else self.start
        )

    def __call__(self, x: LossInputs) -> PerToken:
        loss_BT, metrics = super().__call__(x)
        correct_B = correct_rollouts(x)
        masks = {
            "none": torch.ones_like(correct_B),
            "response": 1 - correct_B,
            "group": (group_mean(correct_B, x.group_B) == 0).to(correct_B),
        }
        return PerToken(self.beta() * masks[self.mask][:, None] * loss_BT, {"kl_teacher": metrics["kl"]})

    def metrics(self) -> dict[str, float]:
        return {"teacher/beta": self.beta()}
