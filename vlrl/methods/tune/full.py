"""Every weight is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl.stages import Tune


@register("full")
@dataclass(frozen=True, kw_only=True)
class Full(Tune):
    """theta <- theta - lr * update, for all of theta.

    Paper: vlrl original (the default of every trainer). Edge: weight decay is left off for vectors (norms, biases). Units: one parameter
    group with weight decay and one without.
    """

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        policy.model.requires_grad_(True)
        return decay_groups(policy.model.named_parameters())


def decay_groups(named: Any, **options: Any) -> list[dict[str, Any]]:
    """Trainable parameters as two groups: matrices, and vectors without weight decay. `options` (such as lr) go into both."""
    trained = [p for _, p in named if p.requires_grad]
    matrices, vectors = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() <= 1]
    groups = [{"params": matrices, **options}, {"params": vectors, "weight_decay": 0.0, **options}]
    return [group for group in groups if group["params"]]
