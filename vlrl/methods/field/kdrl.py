"""Log-probs of the same completion under a teacher."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.registry import ConfigError, register
from vlrl.stages import Field
from vlrl.types import TokenBatch

if TYPE_CHECKING:
    from vlrl.run import Run


@register("teacher_logp")
@dataclass(frozen=True, kw_only=True)
class TeacherLogp(Field):
    """log pi_T(y_t | x, y_<t), in nats, temperature-scaled as sampled, of the frozen model `model` (a name or a folder).

    Paper: Xu et al. 2025 (KDRL), arXiv:2506.02208: per-token log-probs of the teacher on the student's own samples. The teacher is of the policy's
    family and has its tokenizer. Every rank holds a whole teacher. Edge: zero outside the completion. Raises ConfigError where no model is named, or
    where its vocabulary is another. Shapes: (B, T), no gradient.
    """

    model: str = ""
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: Run) -> None:
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
