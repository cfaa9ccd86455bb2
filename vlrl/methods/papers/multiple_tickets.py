"""A random hundredth of the weights."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import Trainable

if TYPE_CHECKING:
    from vlrl.context import RunContext


def ticket(name: str, shape: torch.Size, density: float, seed: int) -> torch.Tensor:
    """The mask (bool) of a parameter: each entry is in it with probability `density`, by the parameter's name and the seed alone."""
    draw = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.rand(shape, generator=draw) < density


@register("multiple_tickets")
@dataclass(frozen=True, kw_only=True)
class MultipleTickets(Trainable):
    """theta <- theta - lr * update(m * grad), m ~ Bernoulli(density) per weight, drawn once from `seed`: all other weights stay as they are.

    Paper: Adewuyi et al. 2026 (Multiple Ticket Hypothesis), arXiv:2602.01599, sec. 3: masks drawn uniformly per tensor, 1% of the weights.
    Gradients are masked before they are clipped and before ranks share them, and there is no weight decay, so that an update of zero is none.
    Deviates: masks are kept as such, and optimizer states in full, so no memory is saved. Edge: density 1 is `full` without weight decay. Raises
    ConfigError where weights are spread over ranks (FSDP, DeepSpeed), whose shards a mask does not fit.
    """

    density: float = 0.01
    seed: int = 0
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"density={self.density} must be in (0, 1]: the share of weights that are trained")

    def setup(self, run: RunContext) -> None:
        self.held["run"] = run
        if run.state_sharded:
            raise ConfigError("trainable: random_sparse masks whole weights, and FSDP and DeepSpeed spread them over ranks; use DDP, or tune lora")

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        policy.model.requires_grad_(True)
        trained, total = 0, 0
        for name, parameter in policy.model.named_parameters():
            mask = ticket(name, parameter.shape, self.density, self.seed).to(parameter.device)
            trained, total = trained + int(mask.sum()), total + mask.numel()
            parameter.register_hook(lambda grad, mask=mask: grad * mask.to(grad.dtype) if self.active else grad)
        self.held["share"] = trained / total
        return [{"params": list(policy.model.parameters()), "weight_decay": 0.0}]

    @property
    def active(self) -> bool:
        """Whether this is the present phase's way of tuning: hooks outlive a phase."""
        return "run" not in self.held or self.held["run"].trainable is self

    def metrics(self) -> dict[str, float]:
        """The share of weights that are trained."""
        return {"tune/share": self.held.get("share", 0.0)}
