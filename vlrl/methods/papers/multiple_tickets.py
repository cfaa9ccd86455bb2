"""The multiple ticket hypothesis: training a random 1% of the weights is enough for RLVR.

Paper: Adewuyi et al. 2026 (Multiple Ticket Hypothesis), arXiv:2602.01599.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, Trainable, transient
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import torch


@dataclass
class MultipleTicketsState(State):
    """`share` is the share of weights that are trained."""

    share: float = transient(0.0)


@register("multiple_tickets")
@dataclass(frozen=True, kw_only=True)
class MultipleTickets(Trainable):
    """Random sparse training: theta <- theta - lr * update(m * grad), m ~ Bernoulli(density) per weight,
    drawn once from `seed`.

    Weights outside of the mask never change: gradients are masked before they are clipped and before ranks
    share them, and there is no weight decay, so that an update of zero changes nothing.
    Paper: Adewuyi et al. 2026 (Multiple Ticket Hypothesis), arXiv:2602.01599, sec. 3: masks drawn uniformly
    per tensor, 1% of the weights. Deviates: masks are kept as such, and optimizer states in full, so no
    memory is saved. Edge: density 1 is `full` without weight decay. Raises ConfigError where weights are
    sharded over ranks (FSDP, DeepSpeed), whose shards a mask does not fit.
    """

    state_class = MultipleTicketsState
    density: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(
                f"density={self.density} must be in (0, 1]: the share of weights that are trained"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded:
            raise ConfigError(
                "trainable: 'multiple_tickets' masks whole weight tensors, which FSDP and DeepSpeed shard "
                "over ranks; use DDP, "
                "or trainable: {name: lora}"
            )

    def __call__(self, policy: PolicyView) -> list[dict[str, Any]]:
        policy.model.requires_grad_(True)
        trained, total = 0, 0
        for name, parameter in policy.model.named_parameters():
            mask = ticket(name, parameter.shape, self.density, self.seed).to(parameter.device)
            trained, total = trained + int(mask.sum()), total + mask.numel()
            parameter.register_hook(
                lambda grad, mask=mask: grad * mask.to(grad.dtype) if self.active else grad
            )
        self.state.share = trained / total
        return [{"params": list(policy.model.parameters()), "weight_decay": 0.0}]

    @property
    def active(self) -> bool:
        """Whether this is the current phase's `trainable`: gradient hooks outlive their phase."""
        return not self.is_set_up or self.run.trainable is self

    def metrics(self) -> dict[str, float]:
        """The share of weights that are trained."""
        return {"trainable/share": self.state.share}


def ticket(name: str, shape: torch.Size, density: float, seed: int) -> torch.Tensor:
    """The mask (bool) of a parameter: each entry is True with probability `density`, as a function of the
    parameter's name and the seed alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.rand(shape, generator=generator) < density
